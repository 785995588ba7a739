"""What /metrics of a kubelet tells of its pods beside what it counts of its own work. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from node_agent.garbage import Space
from node_agent.observed import Container
from node_agent.stats.exposition import GAUGE, Family, Row, labelled
from node_agent.stats.figures import KnownPod

STATES = ("created", "exited", "running")
VOLUMES: tuple[tuple[str, str, Callable[[Space], int]], ...] = (
    ("available_bytes", "Number of available bytes in the volume", lambda one: one.available),
    ("capacity_bytes", "Capacity in bytes of the volume", lambda one: one.capacity),
    ("used_bytes", "Number of used bytes in the volume", lambda one: one.used),
    ("inodes", "Maximum number of inodes in the volume", lambda one: one.inodes),
    ("inodes_free", "Number of free inodes in the volume", lambda one: one.inodes_free),
    ("inodes_used", "Number of used inodes in the volume", lambda one: one.inodes - one.inodes_free),
)


def families(node: str, pods: Sequence[KnownPod], claims: Mapping[tuple[str, str], Space]) -> Iterator[Family]:
    """Every family; `claims` are the file systems of claims by the pod's uid and the name of its volume."""
    everything = [one for pod in pods for one in pod.seen.everything]
    running = sum(1 for pod in pods if any(one.running for one in pod.seen.sandboxes))
    states = Counter(map(_state, (one for one in everything if not one.is_sandbox)))
    yield Family("kubelet_node_name", GAUGE, "The node's name. The count is always 1.", [Row(1, labelled(node=node))])
    yield Family("kubelet_running_pods", GAUGE, "Number of pods that have a running pod sandbox", [Row(running)])
    yield Family(
        "kubelet_running_containers",
        GAUGE,
        "Number of containers by their state",
        [Row(states[state], labelled(container_state=state)) for state in STATES],
    )
    volumes = dict(_volumes(pods, claims))
    for name, words, number in VOLUMES:
        rows: Iterable[Row] = [Row(number(space), labels) for labels, space in sorted(volumes.items())]
        yield Family(f"kubelet_volume_stats_{name}", GAUGE, words, rows)


def _state(one: Container) -> str:
    return "running" if one.running else "created" if one.unborn else "exited"


def _volumes(pods: Iterable[KnownPod], claims: Mapping[tuple[str, str], Space]) -> Iterator[tuple[str, Space]]:
    for known in pods:
        meta = known.pod.metadata
        for volume in known.pod.spec.volumes:
            space, claim = claims.get((meta.uid, volume.name)), volume.persistent_volume_claim
            if space is not None and claim is not None:
                yield labelled(namespace=meta.namespace, persistentvolumeclaim=claim.claim_name), space
