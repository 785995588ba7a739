"""Which peers are probed, and which of them are lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SAMPLE = 8
"""Peers that are probed in one round. In a larger cluster, rounds take turns."""

MAX_SUSPECTS = 6
"""Peers of a round that have not answered before. The others of the sample are new ones."""

LOST_AFTER = 5
"""Rounds without an answer after which a peer is lost. With ten seconds between rounds that is longer than the master
waits for a node that has stopped (nodeMonitorGraceSeconds), so a restart of a node is no loss of tunnels.
"""


class PeerProbes:
    """Counts failed rounds by peer. Memory and work do not grow with the number of rounds."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._rounds = 0
        self._last = ""
        self._has_all = False

    def sample(self, peers: Iterable[str]) -> tuple[str, ...]:
        """Return the peers of the next round: those under suspicion, then others in turn. Forget all that are gone."""
        names = sorted(peers)
        self._failures = {name: self._failures[name] for name in names if name in self._failures}
        suspects = sorted(self._failures, key=lambda name: -self._failures[name])[:MAX_SUSPECTS]
        others = [name for name in names if name not in self._failures]
        in_turn = [name for name in others if name > self._last] + [name for name in others if name <= self._last]
        chosen = in_turn[: SAMPLE - len(suspects)]
        self._last = chosen[-1] if chosen else self._last
        self._has_all = len(suspects) + len(chosen) == len(names)
        return (*suspects, *chosen)

    def record(self, answered: Mapping[str, bool]) -> None:
        """Record the answers of a round. One in which all peers have answered tells as much as several."""
        has_all_answers = self._has_all and all(answered.values())
        self._rounds = LOST_AFTER if has_all_answers else min(self._rounds + 1, LOST_AFTER)
        for name, has_answered in answered.items():
            if has_answered:
                self._failures.pop(name, None)
            else:
                self._failures[name] = min(self._failures.get(name, 0) + 1, LOST_AFTER)

    @property
    def lost(self) -> tuple[str, ...] | None:
        """The lost peers among those that were probed; None before there were enough rounds to know."""
        if self._rounds < LOST_AFTER:
            return None
        return tuple(sorted(name for name, failures in self._failures.items() if failures >= LOST_AFTER))
