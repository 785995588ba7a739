"""Which peers are probed, and which are lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sdn.query.peer_probes import LOST_AFTER, SAMPLE, PeerProbes


def names(count: int) -> list[str]:
    return [f"node-{number:04}" for number in range(count)]


def rounds(probes: PeerProbes, peers: list[str], silent: set[str], count: int) -> list[tuple[str, ...]]:
    samples = []
    for _ in range(count):
        sample = probes.sample(peers)
        probes.record({name: name not in silent for name in sample})
        samples.append(sample)
    return samples


def test_nothing_is_known_before_enough_rounds() -> None:
    """Else a daemon that has just started would take back what its predecessor has found."""
    probes = PeerProbes()
    rounds(probes, names(2), set(names(2)), LOST_AFTER - 1)
    assert probes.lost is None
    rounds(probes, names(2), set(names(2)), 1)
    assert probes.lost == ("node-0000", "node-0001")


def test_one_round_tells_that_no_peer_of_a_small_cluster_is_lost() -> None:
    for count, known in ((0, True), (1, True), (SAMPLE, True), (SAMPLE + 1, False)):
        probes = PeerProbes()
        rounds(probes, names(count), set(), 1)
        assert (probes.lost == ()) is known
    probes = PeerProbes()
    rounds(probes, names(2), {names(2)[0]}, 1)
    assert probes.lost is None


def lost_after(probes: PeerProbes, peers: list[str], silent: set[str], count: int) -> tuple[str, ...] | None:
    rounds(probes, peers, silent, count)
    return probes.lost


def test_peer_is_lost_after_several_rounds_and_back_after_one() -> None:
    probes, peers = PeerProbes(), names(3)
    assert lost_after(probes, peers, set(), LOST_AFTER) == ()
    assert lost_after(probes, peers, {peers[1]}, LOST_AFTER - 1) == ()
    assert lost_after(probes, peers, {peers[1]}, 1) == (peers[1],)
    assert lost_after(probes, peers, set(), 1) == ()


def test_rounds_are_bounded_and_reach_all_peers_of_a_large_cluster() -> None:
    probes, peers = PeerProbes(), names(999)
    samples = rounds(probes, peers, set(), 125)
    assert max(map(len, samples)) == SAMPLE
    assert {name for sample in samples for name in sample} == set(peers)


def test_one_silent_peer_of_a_large_cluster_is_found() -> None:
    probes, peers = PeerProbes(), names(999)
    rounds(probes, peers, {peers[500]}, 140)
    assert probes.lost == (peers[500],)


def test_node_that_is_cut_off_finds_lost_peers_at_once() -> None:
    probes, peers = PeerProbes(), names(999)
    rounds(probes, peers, set(peers), LOST_AFTER)
    assert probes.lost
    assert set(probes.lost) <= set(peers)


def test_peer_that_has_left_is_forgotten() -> None:
    probes, peers = PeerProbes(), names(3)
    assert lost_after(probes, peers, {peers[2]}, LOST_AFTER) == (peers[2],)
    assert lost_after(probes, peers[:2], set(), 1) == ()


@given(st.integers(0, 40), st.integers(1, 20), st.data())
def test_sample_has_each_peer_at_most_once(count: int, turns: int, data: st.DataObject) -> None:
    probes, peers = PeerProbes(), names(count)
    silent = data.draw(st.sets(st.sampled_from(peers))) if peers else set()
    for sample in rounds(probes, peers, silent, turns):
        assert len(sample) == len(set(sample)) == min(SAMPLE, count) or len(sample) >= min(SAMPLE - 6, count)
        assert len(sample) <= SAMPLE
        assert set(sample) <= set(peers)
