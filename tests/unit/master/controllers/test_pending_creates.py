"""Creates of controllers that wait for external calls."""

from __future__ import annotations

from master.admission.external_calls import ExternalCall
from master.controllers.pending_creates import (
    MAX_CALLING,
    MAX_CALLING_OF_NAMESPACE,
    UNUSED_SECONDS,
    PendingCreate,
    PendingCreates,
)

KEY = ("owner", "Pod", "web-")
CALLS = (ExternalCall(),)


def waiting(creates: PendingCreates, count: int = 1) -> list[PendingCreate]:
    """Let a pass ask for creates of one key, each of which waits for calls."""
    creates.begin_pass(0)
    taken = [create for _ in range(count) if (create := creates.take(KEY)) is not None]
    for create in taken:
        creates.wait(create, CALLS)
    return taken


def test_create_is_decided_again_with_the_same_draws_after_its_calls() -> None:
    creates = PendingCreates()
    (create,) = waiting(creates)
    uid = create.write.uid(lambda: "first")
    assert list(creates.start_calls()) == [create]
    creates.begin_pass(1)
    assert creates.take(KEY) is None  # Its calls are being made.
    assert list(creates.start_calls()) == []
    creates.finish_calls(create)
    creates.begin_pass(2)
    again = creates.take(KEY)
    assert again is create
    assert again.write.uid(lambda: "second") == uid


def test_creates_of_one_key_keep_their_order() -> None:
    creates = PendingCreates()
    first, second = waiting(creates, 2)
    for create in creates.start_calls():
        creates.finish_calls(create)
    creates.begin_pass(1)
    assert [creates.take(KEY), creates.take(KEY)] == [first, second]
    assert creates.take(KEY) not in (first, second, None)


def test_create_stays_if_the_write_fails() -> None:
    creates = PendingCreates()
    (create,) = waiting(creates)
    create.write.external.put(CALLS, ("yes",))
    for wrote, stays in ((False, True), (True, False)):
        for each in creates.start_calls():
            creates.finish_calls(each)
        creates.begin_pass(1)
        assert creates.take(KEY) is create
        creates.decide(create)
        if wrote:
            creates.end_pass()
        assert bool(len(creates)) is stays
    creates.begin_pass(2)
    assert creates.take(KEY) is not create


def test_calls_made_at_once_are_limited() -> None:
    creates = PendingCreates()
    creates.begin_pass(0)
    numbers = range(MAX_CALLING + 2)
    for number in numbers:
        wait(creates, f"namespace-{number}")
    calling = list(creates.start_calls())
    assert len(calling) == MAX_CALLING
    creates.finish_calls(calling[0])
    assert len(list(creates.start_calls())) == 1


def test_slow_calls_of_one_namespace_do_not_hold_up_those_of_others() -> None:
    creates = PendingCreates()
    creates.begin_pass(0)
    for _ in range(2 * MAX_CALLING):
        wait(creates, "slow")
    slow = list(creates.start_calls())
    assert len(slow) == MAX_CALLING_OF_NAMESPACE < MAX_CALLING
    wait(creates, "other")
    assert [create.namespace for create in creates.start_calls()] == ["other"]
    creates.finish_calls(slow[0])
    assert [create.namespace for create in creates.start_calls()] == ["slow"]


def wait(creates: PendingCreates, namespace: str) -> None:
    """Let a create of a namespace wait for calls."""
    create = creates.take(("owner", "Pod", f"{namespace}-{len(creates)}"), namespace)
    assert create is not None
    creates.wait(create, CALLS)


def test_create_that_nobody_asks_for_is_given_up() -> None:
    creates = PendingCreates()
    (create,) = waiting(creates)
    list(creates.start_calls())
    for now in (1.0, UNUSED_SECONDS + 2):
        creates.begin_pass(now)
        assert len(creates) == 1  # Its calls are being made.
    creates.finish_calls(create)
    creates.begin_pass(UNUSED_SECONDS + 3)
    assert len(creates) == 0
