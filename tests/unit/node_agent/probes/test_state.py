"""Thresholds, delays and gates of probes, for cases and for any sequence of results."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.pod import Container, ExecAction, Probe, TCPSocketAction
from node_agent.probes.state import (
    LIVENESS,
    READINESS,
    STARTUP,
    ProbeResults,
    ProbeState,
    due_probes,
    initial_state,
    needs_address,
    record_outcome,
)
from tests.unit.node_agent.examples import NOW

LONG_AGO = NOW - timedelta(days=1)
NO_RESULTS = ProbeResults(started=False, ready=False)


def probe(period: int = 10, delay: int = 0, failures: int = 3, successes: int = 1) -> Probe:
    return Probe(
        tcp_socket=TCPSocketAction(port=1),
        period_seconds=period,
        initial_delay_seconds=delay,
        failure_threshold=failures,
        success_threshold=successes,
        timeout_seconds=1,
    )


def container_with(probes: dict[str, Probe]) -> Container:
    return Container(
        startup_probe=probes.get(STARTUP), liveness_probe=probes.get(LIVENESS), readiness_probe=probes.get(READINESS)
    )


def fresh(
    probes: dict[str, Probe], jitter: float = 0.5, agent_age: float = 1e5, previous: ProbeResults = NO_RESULTS
) -> ProbeState:
    return initial_state(container_with(probes), NOW, NOW, NOW - timedelta(seconds=agent_age), jitter, previous)


def after(state: ProbeState, probe_type: str, *outcomes: bool | None) -> ProbeResults:
    results = state.results
    for success in outcomes:
        state, results = record_outcome(state, probe_type, success)
    return results


@pytest.mark.parametrize(
    ("probes", "results"),
    [
        ({}, ProbeResults(True, True, "")),
        ({LIVENESS: probe()}, ProbeResults(True, True, "")),
        ({READINESS: probe()}, ProbeResults(True, False, "")),
        ({STARTUP: probe()}, ProbeResults(False, False, "")),
    ],
)
def test_probe_results_before_any_outcome(probes: dict[str, Probe], results: ProbeResults) -> None:
    assert fresh(probes).results == results


def test_probe_state_resumes_from_reported_status() -> None:
    previous = ProbeResults(started=True, ready=True)
    state = fresh({STARTUP: probe(), READINESS: probe(), LIVENESS: probe()}, previous=previous)
    assert state.results == ProbeResults(True, True, "")
    assert due_probes(state, NOW)[1] == (LIVENESS, READINESS)


def test_exec_probe_runs_without_a_pod_address() -> None:
    program = Probe(exec=ExecAction(command=("true",)))
    assert not needs_address(container_with({LIVENESS: program}))
    assert needs_address(container_with({LIVENESS: program, READINESS: probe()}))


def test_probe_result_changes_at_its_threshold() -> None:
    ready = fresh({READINESS: probe(failures=2, successes=3)})
    assert not after(ready, READINESS, True, True).ready
    assert not after(ready, READINESS, True, True, False, True, True).ready
    assert after(ready, READINESS, True, True, True).ready
    assert after(ready, READINESS, True, True, True, False).ready
    assert not after(ready, READINESS, True, True, True, False, False).ready
    assert after(fresh({LIVENESS: probe()}), LIVENESS, False, False, True, False, False).failed == ""
    assert after(fresh({LIVENESS: probe()}), LIVENESS, False, False, False).failed == LIVENESS
    assert after(fresh({STARTUP: probe(failures=1)}), STARTUP, False) == ProbeResults(False, False, STARTUP)


def test_outcomes_before_a_change_do_not_count_towards_its_threshold() -> None:
    many_successes = [True] * 1000
    ready = fresh({READINESS: probe(failures=3, successes=2)})
    assert after(ready, READINESS, *many_successes, False, False).ready
    assert not after(ready, READINESS, *many_successes, False, False, False).ready
    assert not after(ready, READINESS, *many_successes, *[False] * 1000, True).ready
    assert after(ready, READINESS, *many_successes, *[False] * 1000, True, True).ready


def test_inconclusive_probe_outcome_is_not_counted() -> None:
    assert after(fresh({LIVENESS: probe(failures=2)}), LIVENESS, False, None).failed == ""
    assert after(fresh({LIVENESS: probe(failures=2)}), LIVENESS, False, None, False).failed == LIVENESS


def test_probe_waits_for_its_initial_delay() -> None:
    state = initial_state(
        container_with({LIVENESS: probe(delay=30)}), NOW, NOW + timedelta(seconds=10), LONG_AGO, 0.5, NO_RESULTS
    )
    assert state.wake_at(terminating=False) == NOW + timedelta(seconds=30)
    assert due_probes(state, NOW + timedelta(seconds=29.9))[1] == ()
    assert due_probes(state, NOW + timedelta(seconds=30))[1] == (LIVENESS,)


@pytest.mark.parametrize(("agent_age", "delay"), [(0.0, 5.0), (9.9, 5.0), (10.0, 0.0)])
def test_first_probes_are_jittered_only_after_agent_start(agent_age: float, delay: float) -> None:
    state = fresh({READINESS: probe(period=10)}, 0.5, agent_age)
    assert state.wake_at(terminating=False) == NOW + timedelta(seconds=delay)


def test_startup_probe_delays_other_probes_until_it_succeeds() -> None:
    state = fresh({STARTUP: probe(failures=30), LIVENESS: probe(), READINESS: probe()})
    state, due_kinds = due_probes(state, NOW)
    assert due_kinds == (STARTUP,)
    assert state.wake_at(terminating=False) is None
    state, results = record_outcome(state, STARTUP, True)
    assert results == ProbeResults(True, False, "")
    assert due_probes(state, NOW)[1] == (LIVENESS, READINESS)


@pytest.mark.parametrize("probe_type", [LIVENESS, STARTUP])
def test_no_probe_runs_after_a_fatal_result(probe_type: str) -> None:
    state, results = record_outcome(fresh({probe_type: probe(failures=1)}), probe_type, False)
    assert results.failed == probe_type
    assert due_probes(state, NOW + timedelta(days=1)) == (state, ())
    assert state.wake_at(terminating=False) is None


def test_terminating_pod_runs_only_readiness_probes() -> None:
    state = fresh({LIVENESS: probe(), READINESS: probe()})
    assert due_probes(state, NOW, terminating=True)[1] == (READINESS,)
    assert due_probes(fresh({STARTUP: probe(), READINESS: probe()}), NOW, terminating=True)[1] == ()


# --- for any sequence -------------------------------------------------------------------------------------------------

PROBES = st.builds(probe, st.integers(1, 20), st.integers(0, 20), st.integers(1, 4), st.integers(1, 4))
ONLY_ONE = st.builds(probe, st.integers(1, 20), st.integers(0, 20), st.integers(1, 4))
PROBE_SETS = st.fixed_dictionaries({}, optional={STARTUP: ONLY_ONE, LIVENESS: ONLY_ONE, READINESS: PROBES})
ANSWERS = st.lists(st.one_of(st.booleans(), st.none()), max_size=30)


@given(PROBES, st.lists(st.booleans(), max_size=30))
def test_readiness_equals_the_last_full_run_of_outcomes(probe: Probe, outcomes: list[bool]) -> None:
    expected = False
    for end in range(1, len(outcomes) + 1):
        newest = outcomes[end - 1]
        enough = probe.success_threshold if newest else probe.failure_threshold
        if outcomes[:end][-enough:] == [newest] * enough:
            expected = newest
    assert after(fresh({READINESS: probe}), READINESS, *outcomes).ready == expected


@given(PROBE_SETS, ANSWERS, st.floats(0, 1), st.floats(0, 40), st.booleans())
def test_probe_schedule_is_never_too_early_too_often_or_out_of_order(
    probes: dict[str, Probe], outcomes: list[bool | None], jitter: float, agent_age: float, terminating: bool
) -> None:
    """A probe is due at each time that wake_at() returns, and no probe is due earlier, more often or out of order."""
    state, now = fresh(probes, jitter, agent_age), NOW
    last: dict[str, datetime] = {}
    silent: set[str] = set()
    for success in outcomes:
        at = state.wake_at(terminating)
        if at is None:
            assert due_probes(state, now + timedelta(days=1), terminating) == (state, ())
            return
        assert due_probes(state, at - timedelta(microseconds=1), terminating)[1] == ()
        now = max(now, at)
        started = state.results.started
        state, due_kinds = due_probes(state, now, terminating)
        assert due_kinds
        for probe_type in due_kinds:
            elapsed = (now - NOW).total_seconds()
            assert elapsed >= probes[probe_type].initial_delay_seconds
            assert probe_type not in last or now - last[probe_type] >= timedelta(
                seconds=probes[probe_type].period_seconds
            )
            assert (
                probe_type in last
                or elapsed <= max(probes[probe_type].initial_delay_seconds, probes[probe_type].period_seconds)
                or STARTUP in probes
            )
            assert (probe_type == STARTUP) != started
            assert probe_type not in silent
            assert probe_type == READINESS or not terminating
            last[probe_type] = now
            assert probe_type not in due_probes(state, now + timedelta(days=1), terminating)[1], (
                "it is probed while an outcome is due"
            )
            state, results = record_outcome(state, probe_type, success)
            silent |= {results.failed} if results.failed else set()
            silent |= {STARTUP} if results.started else set()
            assert not results.ready or results.started
            assert results.failed in {"", STARTUP, LIVENESS} & {"", *probes}
