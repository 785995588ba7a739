"""State machine of a container's probes: thresholds, results, next probe. Pure.

One state belongs to one container id; a container that is made anew begins anew. Source: facts/node.md 11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.core.pod import Container as Wish
from api.core.pod import Probe

STARTUP, LIVENESS, READINESS = "Startup", "Liveness", "Readiness"


@dataclass(frozen=True, slots=True)
class ProbeTrack:
    """One probe: when it is due, whether an answer is awaited, the verdict, and how many equal answers came last.

    `passed` is None while nothing can be said.
    """

    probe: Probe
    due: datetime
    passed: bool | None
    asked: bool = False
    last: bool | None = None
    run: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """`failed` is the probe for which the container has to end, or empty."""

    started: bool = True
    ready: bool = True
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The probes that a container has, by their names."""

    tracks: tuple[tuple[str, ProbeTrack], ...]

    @property
    def verdict(self) -> ProbeResults:
        """What is known of the container now."""
        tracks = dict(self.tracks)
        started = STARTUP not in tracks or tracks[STARTUP].passed is True
        ready = started and (READINESS not in tracks or tracks[READINESS].passed is True)
        failed = [kind for kind in (STARTUP, LIVENESS) if kind in tracks and tracks[kind].passed is False]
        return ProbeResults(started, ready, failed[0] if failed else "")

    def wake_at(self, going: bool) -> datetime | None:
        """When there is something to ask next; None while only answers or nothing at all are awaited."""
        started = self.verdict.started
        return min((track.due for kind, track in self.tracks if _may_ask(kind, track, started, going)), default=None)


def container_probes(wish: Wish) -> dict[str, Probe]:
    """The probes that a container wishes for, by their names."""
    wishes = {STARTUP: wish.startup_probe, LIVENESS: wish.liveness_probe, READINESS: wish.readiness_probe}
    return {kind: probe for kind, probe in wishes.items() if probe is not None}


def needs_address(wish: Wish) -> bool:
    """Whether one of its probes goes over the network."""
    return any(probe.exec is None for probe in container_probes(wish).values())


def initial_state(
    wish: Wish, started_at: datetime, now: datetime, agent_began: datetime, share: float, known: ProbeResults
) -> ProbeState:
    """The state of a container that has begun to run.

    `known` is what an earlier agent has told of this container id, so that a restart of the agent changes nothing.
    `share`, 0 to 1, spreads the first questions over a period when the agent itself has begun less than one ago.
    """
    tracks = []
    for kind, probe in container_probes(wish).items():
        period = timedelta(seconds=probe.period_seconds)
        spread = period * share if now - agent_began < period else timedelta(0)
        due = max(now + spread, min(started_at, now) + timedelta(seconds=probe.initial_delay_seconds))
        first = {STARTUP: known.started or None, LIVENESS: True, READINESS: known.ready}[kind]
        tracks.append((kind, ProbeTrack(probe, due, first)))
    return ProbeState(tuple(tracks))


def due_probes(state: ProbeState, now: datetime, going: bool = False) -> tuple[ProbeState, tuple[str, ...]]:
    """What to ask now; the answers are awaited. `going`: the pod is being deleted, only readiness still matters."""
    started = state.verdict.started
    ask = tuple(kind for kind, track in state.tracks if _may_ask(kind, track, started, going) and track.due <= now)
    tracks = tuple((kind, _asked(track, now) if kind in ask else track) for kind, track in state.tracks)
    return ProbeState(tracks), ask


def record_answer(state: ProbeState, kind: str, success: bool | None) -> tuple[ProbeState, ProbeResults]:
    """Take an answer; None is one that says nothing, as when Docker was away. A verdict changes at its threshold."""
    tracks = tuple((one, _answered(track, success) if one == kind else track) for one, track in state.tracks)
    after = ProbeState(tracks)
    return after, after.verdict


def _may_ask(kind: str, track: ProbeTrack, started: bool, going: bool) -> bool:
    if track.asked:
        return False
    if kind == READINESS:
        return started
    if going:
        return False
    # A verdict on the start, or against the life, of a container stands until there is another container.
    return track.passed is None if kind == STARTUP else started and track.passed is True


def _asked(track: ProbeTrack, now: datetime) -> ProbeTrack:
    return replace(track, asked=True, due=now + timedelta(seconds=track.probe.period_seconds))


def _answered(track: ProbeTrack, success: bool | None) -> ProbeTrack:
    if success is None:
        return replace(track, asked=False)
    run = track.run + 1 if success == track.last else 1
    enough = track.probe.success_threshold if success else track.probe.failure_threshold
    return replace(track, asked=False, last=success, run=run, passed=success if run >= enough else track.passed)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Whether it went well, or None when nothing was learnt, as when Docker is away.

    The words tell why not; those of a success tell what somebody should look at all the same.
    """

    success: bool | None
    words: str = ""
