"""State machine of a container's probes: thresholds, results, next probe. Pure.

A state belongs to one container ID. A container that is created again starts with a new state. The rules are those of
https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/ and of kubelet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.core.pod import Container, Probe

STARTUP, LIVENESS, READINESS = "Startup", "Liveness", "Readiness"
"""The probe types."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """The outcome of one execution of a probe or a hook.

    `success` is None if the outcome is unknown, as when Docker does not respond. The message is the reason of a
    failure; with a success it is a warning.
    """

    success: bool | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProbeTrack:
    """State of one probe.

    `passed` is the result, None while there is none. `in_flight` means that the probe is being executed. `streak` is
    the number of equal outcomes in a row, `last_success` the last of them.
    """

    probe: Probe
    next_at: datetime
    passed: bool | None
    in_flight: bool = False
    last_success: bool | None = None
    streak: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """Results of a container's probes.

    `failed` is the type of the probe because of which the container has to be killed, empty if there is none.
    """

    started: bool = True
    ready: bool = True
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ProbeState:
    """States of the probes that a container has, by probe type."""

    tracks: tuple[tuple[str, ProbeTrack], ...]

    @property
    def results(self) -> ProbeResults:
        """The current results."""
        tracks = dict(self.tracks)
        started = STARTUP not in tracks or tracks[STARTUP].passed is True
        ready = started and (READINESS not in tracks or tracks[READINESS].passed is True)
        failed = [
            probe_type
            for probe_type in (STARTUP, LIVENESS)
            if probe_type in tracks and tracks[probe_type].passed is False
        ]
        return ProbeResults(started, ready, failed[0] if failed else "")

    def wake_at(self, terminating: bool) -> datetime | None:
        """Return when the next probe is due. Returns None while no probe is, except for those in flight."""
        started = self.results.started
        return min(
            (track.next_at for probe_type, track in self.tracks if _may_probe(probe_type, track, started, terminating)),
            default=None,
        )


def container_probes(container: Container) -> dict[str, Probe]:
    """Return the probes that a container has, by probe type."""
    probes = {
        STARTUP: container.startup_probe,
        LIVENESS: container.liveness_probe,
        READINESS: container.readiness_probe,
    }
    return {probe_type: probe for probe_type, probe in probes.items() if probe is not None}


def needs_address(container: Container) -> bool:
    """Return whether one of a container's probes uses the network."""
    return any(probe.exec is None for probe in container_probes(container).values())


def initial_state(
    container: Container,
    started_at: datetime,
    now: datetime,
    agent_started_at: datetime,
    jitter: float,
    previous: ProbeResults,
) -> ProbeState:
    """Return the state of a running container that is probed from now on.

    `previous` are the results of this container ID from a previous agent process, so that a restart of the agent
    changes nothing. `jitter`, 0 to 1, is the part of a period by which first probes are delayed, if the agent itself
    started less than a period ago.
    """
    tracks = []
    for probe_type, probe in container_probes(container).items():
        period = timedelta(seconds=probe.period_seconds)
        delay = period * jitter if now - agent_started_at < period else timedelta(0)
        next_at = max(now + delay, min(started_at, now) + timedelta(seconds=probe.initial_delay_seconds))
        passed = {STARTUP: previous.started or None, LIVENESS: True, READINESS: previous.ready}[probe_type]
        tracks.append((probe_type, ProbeTrack(probe, next_at, passed)))
    return ProbeState(tuple(tracks))


def due_probes(state: ProbeState, now: datetime, terminating: bool = False) -> tuple[ProbeState, tuple[str, ...]]:
    """Return the types of the probes to execute now, and the state with these probes in flight.

    `terminating`: the pod is being deleted, so that only readiness is probed.
    """
    started = state.results.started
    due = tuple(
        probe_type
        for probe_type, track in state.tracks
        if _may_probe(probe_type, track, started, terminating) and track.next_at <= now
    )
    tracks = tuple(
        (probe_type, _with_probe_sent(track, now) if probe_type in due else track) for probe_type, track in state.tracks
    )
    return ProbeState(tracks), due


def record_outcome(state: ProbeState, probe_type: str, success: bool | None) -> tuple[ProbeState, ProbeResults]:
    """Return the state and the results after the outcome of a probe in flight. A result changes at its threshold.

    With None, the outcome is unknown and the results stay.
    """
    tracks = tuple(
        (other, _with_outcome(track, success) if other == probe_type else track) for other, track in state.tracks
    )
    after = ProbeState(tracks)
    return after, after.results


def _may_probe(probe_type: str, track: ProbeTrack, started: bool, terminating: bool) -> bool:
    if track.in_flight:
        return False
    if probe_type == READINESS:
        return started
    if terminating:
        return False
    # The result of a startup probe is final for this container, and so is a failed liveness probe.
    return track.passed is None if probe_type == STARTUP else started and track.passed is True


def _with_probe_sent(track: ProbeTrack, now: datetime) -> ProbeTrack:
    return replace(track, in_flight=True, next_at=now + timedelta(seconds=track.probe.period_seconds))


def _with_outcome(track: ProbeTrack, success: bool | None) -> ProbeTrack:
    if success is None:
        return replace(track, in_flight=False)
    streak = track.streak + 1 if success == track.last_success else 1
    threshold = track.probe.success_threshold if success else track.probe.failure_threshold
    passed = success if streak >= threshold else track.passed
    return replace(track, in_flight=False, last_success=success, streak=streak, passed=passed)
