"""Checks the history that clients saw of a collection under concurrent writes: lists, watches and acknowledged writes.
Pure.

The history is taken from the watches that select everything. They must agree: each object is added once, changes step
by step, and is removed in its last state. Every other watch must have received the part of that history between its
begin and its end, as its selection sees it. Every list must show the state at its revision. Every acknowledged write
must be in the history once, at its revision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BOOKMARK = "BOOKMARK"


class State(NamedTuple):
    """One state of one object. `step` grows by one with each update, `by` names the write that made it."""

    uid: str
    step: int
    by: str
    color: str
    ending: bool = False
    """It has been deleted, and goes when its finalizer does."""


class Seen(NamedTuple):
    """An event of a watch: of the object `name` (namespace/name), or a bookmark, which has only a revision."""

    type: str
    revision: int
    name: str = ""
    state: State | None = None


class Selection(NamedTuple):
    """The selection of a list or a watch. An empty one selects everything."""

    namespace: str = ""
    color: str = ""

    def takes(self, name: str, state: State | None) -> bool:
        """Return whether the selection contains an object in a state."""
        if state is None or (self.namespace and not name.startswith(f"{self.namespace}/")):
            return False
        return self.color in ("", state.color)


class Item(NamedTuple):
    """An object of a list; `revision` is its own resourceVersion."""

    name: str
    revision: int
    state: State


class Snapshot(NamedTuple):
    """A list, or the initial events of a watch."""

    selection: Selection
    revision: int
    items: frozenset[Item]


class Session(NamedTuple):
    """One watch, from the revision that it requested to its end."""

    selection: Selection
    after: int
    seen: tuple[Seen, ...]

    @property
    def until(self) -> int:
        """How far the client has come."""
        return self.seen[-1].revision if self.seen else self.after


class AcknowledgedWrite(NamedTuple):
    """A write that the server accepted. `revision` is 0 if the response has none."""

    type: str
    revision: int
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """All that was seen from `begin` on. `quiet`: between two revisions nothing of this collection was written."""

    begin: Snapshot
    sessions: Sequence[Session]
    snapshots: Sequence[Snapshot]
    acknowledged: Sequence[AcknowledgedWrite]
    quiet: Sequence[tuple[int, int]] = ()


class Change(NamedTuple):
    """One entry of the story, with the state before it."""

    seen: Seen
    before: State | None


def find_violations(evidence: RecordedHistory) -> list[str]:
    """Return a sentence for each violation of consistency."""
    actual: list[str] = []
    reported = _together(evidence.sessions, actual)
    actual += _unwatched(evidence)
    story = _story(evidence.begin, reported, actual)
    actual += _unkept(reported, evidence.acknowledged)
    actual += _wrong_lists(evidence.begin, story, evidence.snapshots)
    actual += _wrong_watches(story, evidence.sessions)
    return actual


# --- the story --------------------------------------------------------------------------------------------------------


def _together(sessions: Iterable[Session], actual: list[str]) -> dict[int, Seen]:
    reported: dict[int, Seen] = {}
    whole = (session for session in sessions if session.selection == Selection())
    events = (seen for session in whole for seen in session.seen if seen.type != BOOKMARK)
    other = [seen for seen in events if reported.setdefault(seen.revision, seen) != seen]
    actual += [f"revision {seen.revision} is told in two ways: {reported[seen.revision]} and {seen}" for seen in other]
    return dict(sorted(reported.items()))


def _unwatched(evidence: RecordedHistory) -> Iterator[str]:
    """Yield the ranges of revisions that no watch of everything covers; they cannot be checked."""
    reached = evidence.begin.revision
    whole = [(session.after, session.until) for session in evidence.sessions if session.selection == Selection()]
    last = max((session.until for session in evidence.sessions), default=reached)
    for after, until in sorted((*whole, *evidence.quiet, (last, last))):
        if after > reached:
            yield f"nobody watched everything between {reached} and {after}"
        reached = max(reached, until)


def _story(begin: Snapshot, reported: Mapping[int, Seen], actual: list[str]) -> list[Change]:
    now = {listed.name: listed.state for listed in begin.items}
    used = {state.uid for state in now.values()}
    story: list[Change] = []
    for seen in reported.values():
        before = now.get(seen.name)
        if why := _out_of_line(seen, before, used):
            actual.append(f"revision {seen.revision}: {why}: {seen} after {before}")
        story.append(Change(seen, before))
        if seen.state is None or seen.type == "DELETED":
            now.pop(seen.name, None)
        else:
            now[seen.name] = seen.state
            used.add(seen.state.uid)
    return story


def _out_of_line(seen: Seen, before: State | None, used: set[str]) -> str:
    state = seen.state
    if state is None:
        return "an event without an object"
    if seen.type == "ADDED":
        good = before is None and state.uid not in used and state.step == 0 and not state.ending
        return "" if good else "added while it was there, or with the past of another"
    if before is None or before.uid != state.uid:
        return "told of an object that was not there"
    if seen.type == "MODIFIED":
        return "" if _follows(before, state) else "a change is missing, or out of order"
    return "" if seen.type == "DELETED" and before == state else "removed in another state than its last"


def _follows(before: State, after: State) -> bool:
    if after.step == before.step:
        return after == before._replace(ending=True) and not before.ending
    return after.step == before.step + 1 and after.ending == before.ending


def _unkept(reported: Mapping[int, Seen], acknowledged: Iterable[AcknowledgedWrite]) -> Iterator[str]:
    """Yield the acknowledged writes that are lost, and those that are stored differently."""
    removed = {seen.state.uid for seen in reported.values() if seen.type == "DELETED" and seen.state}
    for write in acknowledged:
        if write.revision:
            seen = reported.get(write.revision)
            if seen != Seen(*write):
                yield f"acknowledged was {write}, but revision {write.revision} is {seen}"
        elif write.state.uid not in removed:
            yield f"acknowledged was {write}, but it was never seen to be removed"


# --- what each client saw of it ---------------------------------------------------------------------------------------


def _wrong_lists(begin: Snapshot, story: Sequence[Change], snapshots: Iterable[Snapshot]) -> Iterator[str]:
    now = {listed.name: listed for listed in begin.items}
    changes = iter(story)
    change = next(changes, None)
    for snapshot in sorted(snapshots, key=lambda candidate: candidate.revision):
        while change is not None and change.seen.revision <= snapshot.revision:
            seen = change.seen
            if seen.type == "DELETED" or seen.state is None:
                now.pop(seen.name, None)
            else:
                now[seen.name] = Item(seen.name, seen.revision, seen.state)
            change = next(changes, None)
        wanted = {listed for listed in now.values() if snapshot.selection.takes(listed.name, listed.state)}
        if wanted != snapshot.items:
            wrong = sorted(wanted ^ snapshot.items)[:3]
            yield f"list of {snapshot.selection} at {snapshot.revision} differs from what happened, first in {wrong}"


def visible_change(change: Change, selection: Selection) -> Seen | None:
    """Return a change as a selection sees it: an object is added to it, modified in it, or deleted from it."""
    seen, before = change
    was = selection.takes(seen.name, before)
    if seen.type != "DELETED" and selection.takes(seen.name, seen.state):
        return seen._replace(type="MODIFIED" if was else "ADDED")
    return seen._replace(type="DELETED", state=before) if was else None


def _wrong_watches(story: Sequence[Change], sessions: Iterable[Session]) -> Iterator[str]:
    wanted: dict[Selection, list[Seen]] = {}
    for session in sessions:
        if session.selection not in wanted:
            every = (visible_change(change, session.selection) for change in story)
            wanted[session.selection] = [seen for seen in every if seen is not None]
        if why := _difference(wanted[session.selection], session):
            yield f"watch of {session.selection} after {session.after}: {why}"


def _difference(wanted: Sequence[Seen], session: Session) -> str:
    index = bisect_right(wanted, session.after, key=_revision)
    reached = session.after
    for seen in session.seen:
        next_one = wanted[index] if index < len(wanted) else None
        if seen.type == BOOKMARK:
            if seen.revision < reached:
                return f"a bookmark of {seen.revision} after revision {reached}"
            if next_one is not None and next_one.revision <= seen.revision:
                return f"a bookmark of {seen.revision} came before {next_one}"
        elif seen != next_one:
            again = "again or too late: " if seen.revision <= reached else ""
            return f"after revision {reached} came {again}{seen}, but next is {next_one}"
        else:
            index += 1
        reached = seen.revision
    return ""


def _revision(seen: Seen) -> int:
    return seen.revision
