"""What a pod's worker would only learn again after a restart of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from node_agent.clock import wall
from node_agent.progress import Progress
from node_agent.status import Facts

FIRST_DELAY, LAST_DELAY = timedelta(seconds=1), timedelta(seconds=300)
"""Between attempts to have a sandbox."""


@dataclass(slots=True)
class PodMemory:
    """`attached` is the sandbox that has its place in the network; `troubles` are (reason, message) by container.

    `retired` are ids of containers that were asked to stop because of their image, `held_back` of those that wait.
    """

    started_at: datetime
    address: str = ""
    attached: str = ""
    retired: set[str] = field(default_factory=set)
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)
    trouble: tuple[str, str] | None = None
    held_back: set[str] = field(default_factory=set)
    sandbox_failures: int = 0
    sandbox_due: datetime | None = None

    def newly_held(self, waiting: Mapping[str, str]) -> list[str]:
        """Of the containers that wait, by the ids of those that ended, the names of those that did not wait yet."""
        fresh = [waiting[identity] for identity in waiting.keys() - self.held_back]
        self.held_back = set(waiting)
        return fresh

    def sandbox_failed(self, now: datetime) -> datetime:
        """The next attempt waits, longer each time: Docker's own events of this one must not bring it about."""
        delay = min(FIRST_DELAY * float(2 ** min(self.sandbox_failures, 10)), LAST_DELAY)
        self.sandbox_failures, self.sandbox_due = self.sandbox_failures + 1, now + delay
        return self.sandbox_due

    def sandbox_stands(self) -> None:
        """It runs, and has its place in the network."""
        self.sandbox_failures, self.sandbox_due = 0, None

    def holds_sandbox(self, now: datetime) -> bool:
        """Whether it is too early for another one."""
        return self.sandbox_due is not None and now < self.sandbox_due

    def facts(self, node_address: str, messages: Mapping[str, str], progress: Progress, terminating: bool) -> Facts:
        """What a status tells besides the containers, now."""
        return Facts(
            node_address=node_address,
            address=self.address,
            addressless=bool(self.attached) and not self.address and self.trouble is None,
            now=wall(),
            started_at=self.started_at,
            troubles=dict(self.troubles),
            trouble=self.trouble,
            terminating=terminating,
            messages=messages,
            progress=progress,
        )
