"""Compiles the desired network of the node into every flow of the bridge. Pure.

A function that returns flows is listed once, in the tuple of its subject. `docs/pipeline.md` names it at each of its
flows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sdn.model.flow import Flow
from sdn.pipeline.isolation import docker_ingress_flows, pod_ingress_flows
from sdn.pipeline.multicast import multicast_flows
from sdn.pipeline.pod_connectivity import (
    docker_flows,
    external_flows,
    gateway_flows,
    l3_forwarding_flows,
    peer_flows,
    pod_flows,
    pod_without_vnid_flows,
    remote_arp_flows,
    unknown_peer_flows,
)
from sdn.pipeline.service import hairpin_flows, peer_node_port_flows, service_node_flows
from sdn.topology import Cluster, DockerNetwork, Node, NodeNetwork, Peer, Pod

NODE_FLOWS: tuple[Callable[[Cluster, Node], frozenset[Flow]], ...] = (
    gateway_flows,
    l3_forwarding_flows,
    remote_arp_flows,
    unknown_peer_flows,
    service_node_flows,
    external_flows,
)
PEER_FLOWS: tuple[Callable[[Peer], frozenset[Flow]], ...] = (peer_flows, peer_node_port_flows)
POD_FLOWS: tuple[Callable[[Pod], frozenset[Flow]], ...] = (pod_flows, pod_ingress_flows, hairpin_flows)
DOCKER_FLOWS: tuple[Callable[[DockerNetwork], frozenset[Flow]], ...] = (docker_flows, docker_ingress_flows)


def compile_flows(network: NodeNetwork) -> frozenset[Flow]:
    """Return every flow of the bridge, except those of services."""
    return frozenset().union(
        *(flows(network.cluster, network.node) for flows in NODE_FLOWS),
        _all_peers_flows(network.peers),
        multicast_flows(network.multicast, network.peers, network.pods, network.docker),
        flows_of_docker(network.docker) if network.docker is not None else (),
        *map(flows_of_pod, network.pods),
        *map(pod_without_vnid_flows, network.pods_without_vnid),
    )


@lru_cache(maxsize=8192)
def flows_of_pod(pod: Pod) -> frozenset[Flow]:
    """Return every flow of one pod."""
    return frozenset().union(*(flows(pod) for flows in POD_FLOWS))


@lru_cache(maxsize=65536)
def flows_of_peer(peer: Peer) -> frozenset[Flow]:
    """Return every flow of one peer."""
    return frozenset().union(*(flows(peer) for flows in PEER_FLOWS))


@lru_cache(maxsize=1)
def flows_of_docker(docker: DockerNetwork) -> frozenset[Flow]:
    """Return every flow of Docker's bridge."""
    return frozenset().union(*(flows(docker) for flows in DOCKER_FLOWS))


@lru_cache(maxsize=2)
def _all_peers_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    return frozenset().union(*map(flows_of_peer, peers))
