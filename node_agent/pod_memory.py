"""What a pod's worker would only learn again after a restart of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


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
