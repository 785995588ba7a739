"""How far the containers of a pod have come: what probes say, whose start is complete, who has to end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api.objects import Container as Wish
from api.probes import LifecycleHandler
from node_agent.observed import Container
from node_agent.probing import LIVENESS, STARTUP, Verdict

POST_START = "PostStart"
UNKNOWN = Verdict(started=False, ready=False)


@dataclass(frozen=True, slots=True)
class Condemned:
    """A container that has to end, why (Startup, Liveness or PostStart), and in how many seconds at most."""

    why: str
    grace: int

    def words(self, name: str, policy: str) -> str:
        """As it is told of the container of that name, under its restart policy."""
        if self.why == POST_START:
            return "FailedPostStartHook"
        again = ", will be restarted" if policy != "Never" else ""
        return f"Container {name} failed {self.why.lower()} probe{again}"


@dataclass(frozen=True, slots=True)
class Progress:
    """By container id. `begun` are those whose postStart hook is done; only containers that have one are there."""

    verdicts: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    begun: frozenset[str] = frozenset()
    condemned: Mapping[str, Condemned] = field(default_factory=lambda: MappingProxyType({}))

    def hook_is_due(self, wish: Wish, one: Container) -> bool:
        """Whether its postStart hook has not been completed yet."""
        return one.running and not self.is_up(wish, one) and one.id not in self.condemned

    def is_up(self, wish: Wish, one: Container) -> bool:
        """Whether it runs and its postStart hook has gone well."""
        return one.running and (post_start(wish) is None or one.id in self.begun)

    def is_started(self, wish: Wish, one: Container) -> bool:
        """Whether it is up and its startup probe has succeeded."""
        probed = wish.startup_probe is not None
        return self.is_up(wish, one) and (not probed or self.verdicts.get(one.id, UNKNOWN).started)

    def is_ready(self, wish: Wish, one: Container) -> bool:
        """Whether it is started and its readiness probe has succeeded."""
        probed = wish.readiness_probe is not None
        return self.is_started(wish, one) and (not probed or self.verdicts.get(one.id, UNKNOWN).ready)

    def comes_back(self, policy: str, one: Container) -> bool:
        """Whether it has to be started again although its exit code may not ask for it: we have ended it."""
        return policy != "Never" and one.id in self.condemned


NOTHING = Progress()


def post_start(wish: Wish) -> LifecycleHandler | None:
    """The hook that a container wishes for when it has been started."""
    return wish.lifecycle.post_start if wish.lifecycle is not None else None


def condemned_by(wish: Wish, why: str, grace: int) -> Condemned:
    """The end of a container by one of its probes or its hook; `grace` is the pod's, a probe may have its own."""
    probe = {STARTUP: wish.startup_probe, LIVENESS: wish.liveness_probe}.get(why)
    own = probe.termination_grace_period_seconds if probe is not None else None
    return Condemned(why, grace if own is None else own)
