"""The watch checker accepts a correct history and finds every kind of error in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.testbed.apiserver.watch_checker import (
    BOOKMARK,
    AcknowledgedWrite,
    Change,
    Item,
    RecordedHistory,
    Seen,
    Selection,
    Session,
    Snapshot,
    State,
    find_violations,
    visible_change,
)

COLORS = ("red", "blue")
SELECTIONS = (Selection(), Selection(color="red"), Selection("one"), Selection("two", "blue"))
SEEDS = range(12)


def _story(dice: random.Random, length: int) -> list[Change]:
    """Return a history of a few objects. Revisions of other kinds lie between their changes."""
    now: dict[str, State] = {}
    story: list[Change] = []
    revision = 10
    for number in range(length):
        revision += dice.choice((1, 1, 1, 3))
        name = f"{dice.choice(('one', 'two'))}/{dice.randrange(4)}"
        before, color = now.get(name), dice.choice(COLORS)
        if before is None:
            seen = Seen("ADDED", revision, name, State(f"uid-{number}", 0, f"w{number}", color))
        elif before.ending or dice.random() < 0.2:
            seen = Seen("DELETED", revision, name, before)
        elif dice.random() < 0.1:
            seen = Seen("MODIFIED", revision, name, before._replace(ending=True))
        else:
            after = before._replace(step=before.step + 1, by=f"w{number}", color=color)
            seen = Seen("MODIFIED", revision, name, after)
        story.append(Change(seen, before))
        now.pop(name, None)
        if seen.state is not None and seen.type != "DELETED":
            now[name] = seen.state
    return story


def _snapshot(story: list[Change], selection: Selection, revision: int) -> Snapshot:
    now: dict[str, Item] = {}
    for (kind, at, name, state), _ in story:
        if at <= revision:
            now.pop(name, None)
            if kind != "DELETED" and state is not None and selection.takes(name, state):
                now[name] = Item(name, at, state)
    return Snapshot(selection, revision, frozenset(now.values()))


def _session(dice: random.Random, story: list[Change], selection: Selection, after: int, until: int) -> Session:
    seen: list[Seen] = []
    for change in story:
        if after < change.seen.revision <= until:
            entry = visible_change(change, selection)
            if entry is not None:
                seen.append(entry)
            if dice.random() < 0.1:
                seen.append(Seen(BOOKMARK, change.seen.revision))
    return Session(selection, after, (*seen, Seen(BOOKMARK, until)))


def _evidence(seed: int) -> RecordedHistory:
    dice = random.Random(seed)
    story = _story(dice, 80)
    last = story[-1].seen.revision
    sessions, snapshots = [], []
    for selection in SELECTIONS:
        cuts = [10, *sorted(dice.sample(range(11, last), 3)), last]
        sessions += [_session(dice, story, selection, a, b) for a, b in pairwise(cuts)]
        back = dice.randrange(11, last)
        sessions.append(_session(dice, story, selection, back, last))
        snapshots += [_snapshot(story, selection, cut) for cut in cuts[1:]]
    # Of a removal, the answer tells no revision.
    acknowledged = [
        AcknowledgedWrite(kind, 0 if kind == "DELETED" else revision, name, state)
        for (kind, revision, name, state), _ in story
        if state is not None and dice.random() < 0.9
    ]
    return RecordedHistory(Snapshot(Selection(), 10, frozenset()), sessions, snapshots, acknowledged)


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_checker_finds_nothing_in_a_correct_history(seed: int) -> None:
    assert find_violations(_evidence(seed)) == []


# --- spoiling ---------------------------------------------------------------------------------------------------------


Spoil = Callable[[random.Random, list[Seen]], list[Seen]]


def _events(seen: list[Seen], *types: str) -> list[int]:
    return [index for index, event in enumerate(seen) if event.type in (types or ("ADDED", "MODIFIED", "DELETED"))]


def _lost(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen))
    return seen[:index] + seen[index + 1 :]


def _doubled(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen))
    return seen[: index + 1] + seen[index:]


def _swapped(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    places = _events(seen)
    index = dice.randrange(len(places) - 1)
    first, other = places[index], places[index + 1]
    spoiled = list(seen)
    spoiled[first], spoiled[other] = seen[other], seen[first]
    return spoiled


def _changed(dice: random.Random, seen: list[Seen], *types: str, **fields: Any) -> list[Seen]:
    index = dice.choice(_events(seen, *types))
    return [*seen[:index], seen[index]._replace(**fields), *seen[index + 1 :]]


def _wrong_revision(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen))
    return [*seen[:index], seen[index]._replace(revision=seen[index].revision - 1), *seen[index + 1 :]]


def _old_revision_of_a_removal(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen, "DELETED"))
    return [*seen[:index], seen[index]._replace(revision=seen[index].revision - 3), *seen[index + 1 :]]


def _stale(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    places = [index for index in _events(seen) if (state := seen[index].state) is not None and state.step > 0]
    index = dice.choice(places)
    state = seen[index].state
    assert state is not None
    old = seen[index]._replace(state=state._replace(step=state.step - 1))
    return [*seen[:index], old, *seen[index + 1 :]]


def _invented(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.randrange(len(seen))
    extra = Seen("ADDED", seen[index].revision, "one/ghost", State("ghost", 0, "nobody", "red"))
    return [*seen[:index], extra, *seen[index:]]


def _bookmark_ahead(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen))
    return [*seen[:index], Seen(BOOKMARK, seen[index].revision), *seen[index:]]


def _bookmark_behind(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    index = dice.choice(_events(seen))
    return [*seen[: index + 1], Seen(BOOKMARK, seen[index].revision - 1), *seen[index + 1 :]]


def _entering_as_a_change(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    return _changed(dice, seen, "ADDED", type="MODIFIED")


def _leaving_as_a_change(dice: random.Random, seen: list[Seen]) -> list[Seen]:
    return _changed(dice, seen, "DELETED", type="MODIFIED")


SPOILS: tuple[Spoil, ...] = (
    _lost,
    _doubled,
    _swapped,
    _wrong_revision,
    _old_revision_of_a_removal,
    _stale,
    _invented,
    _bookmark_ahead,
    _bookmark_behind,
    _entering_as_a_change,
    _leaving_as_a_change,
)


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize("spoil", SPOILS)
def test_watch_checker_finds_an_error_of_one_watch(spoil: Spoil, selection: Selection) -> None:
    spoiled = 0
    for seed in SEEDS:
        dice, true = random.Random(seed), _evidence(seed)
        candidates = [
            index
            for index, session in enumerate(true.sessions)
            if session.selection == selection
            and len(_events(list(session.seen))) > 1
            and _events(list(session.seen), "ADDED")
            and _events(list(session.seen), "DELETED")
            and any(seen.state is not None and seen.state.step > 0 for seen in session.seen)
        ]
        for index in candidates[:1]:
            session = true.sessions[index]
            wrong = session._replace(seen=tuple(spoil(dice, list(session.seen))))
            sessions = [*true.sessions[:index], wrong, *true.sessions[index + 1 :]]
            assert find_violations(replace(true, sessions=sessions)), f"seed {seed}"
            spoiled += 1
    assert spoiled > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_checker_finds_a_change_lost_by_all_watches(seed: int) -> None:
    """A watch that receives the next change of the object, or its deletion, misses the one before."""
    dice, true = random.Random(seed), _evidence(seed)
    whole = [seen for session in true.sessions if session.selection == Selection() for seen in session.seen]
    middle = [
        seen
        for seen in whole
        if seen.type == "MODIFIED"
        and any(later.name == seen.name and later.revision > seen.revision for later in whole)
        and any(earlier.name == seen.name and earlier.revision < seen.revision for earlier in whole)
    ]
    lost = dice.choice(middle).revision
    sessions = [
        session._replace(seen=tuple(seen for seen in session.seen if seen.revision != lost))
        for session in true.sessions
    ]
    assert find_violations(replace(true, sessions=sessions, acknowledged=[]))


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_checker_finds_an_acknowledged_write_that_no_watch_saw(seed: int) -> None:
    true = _evidence(seed)
    last = max(seen.revision for session in true.sessions for seen in session.seen)
    ghost = State("ghost", 0, "nobody", "red")
    for lost in (
        AcknowledgedWrite("ADDED", last + 1, "one/ghost", ghost),
        AcknowledgedWrite("DELETED", 0, "one/ghost", ghost),
    ):
        assert find_violations(replace(true, acknowledged=[*true.acknowledged, lost]))


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_checker_finds_a_write_acknowledged_twice(seed: int) -> None:
    """Two writers each get the response that their change followed the same state."""
    true = _evidence(seed)
    acknowledged_write = next(write for write in true.acknowledged if write.revision)
    twin = acknowledged_write._replace(state=acknowledged_write.state._replace(by="another"))
    assert find_violations(replace(true, acknowledged=[*true.acknowledged, twin]))


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_checker_finds_a_wrong_list(seed: int) -> None:
    dice, true = random.Random(seed), _evidence(seed)
    index, snapshot = next((p, candidate) for p, candidate in enumerate(true.snapshots) if candidate.items)
    listed = dice.choice(sorted(snapshot.items))
    others = snapshot.items - {listed}
    for items in (
        others,
        others | {listed._replace(revision=listed.revision - 1)},
        others | {listed._replace(state=listed.state._replace(by="another"))},
        snapshot.items | {listed._replace(name=f"{listed.name}-ghost")},
    ):
        wrong = [*true.snapshots[:index], snapshot._replace(items=items), *true.snapshots[index + 1 :]]
        assert find_violations(replace(true, snapshots=wrong))


def test_watch_checker_rejects_a_history_without_watches() -> None:
    true = _evidence(0)
    partial = [session for session in true.sessions if session.selection != Selection()]
    assert "nobody watched everything" in find_violations(replace(true, sessions=partial))[0]
