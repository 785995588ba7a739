from __future__ import annotations

from datetime import UTC, datetime, timedelta

from node_agent.pods.worker import WorkerState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_sandbox_that_cannot_start_is_tried_again_less_and_less_often() -> None:
    memory, now, waits = WorkerState(NOW), NOW, []
    assert not memory.holds_sandbox(now)
    for _ in range(11):
        due = memory.sandbox_failed(now)
        assert memory.holds_sandbox(due - timedelta(milliseconds=1))
        assert not memory.holds_sandbox(due)
        waits.append((due - now).total_seconds())
        now = due
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    memory.sandbox_stands()
    assert not memory.holds_sandbox(now)
    assert memory.sandbox_failed(now) == now + timedelta(seconds=1)
