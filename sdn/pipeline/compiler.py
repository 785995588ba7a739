"""Compiles the desired network of the node into every flow of the bridge. Pure."""

from __future__ import annotations

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
)
from sdn.pipeline.service import hairpin_flows, peer_node_port_flows, service_conntrack_flows
from sdn.topology import DockerNetwork, NodeNetwork, Peer, Pod


def compile_flows(network: NodeNetwork) -> frozenset[Flow]:
    """Return every flow of the bridge, except those of services."""
    return frozenset().union(
        gateway_flows(network.cluster, network.node),
        l3_forwarding_flows(network.cluster, network.node),
        service_conntrack_flows(network.cluster, network.node),
        external_flows(network.cluster, network.node),
        _all_peers_flows(network.peers),
        multicast_flows(network.multicast, network.peers, network.pods, network.docker),
        flows_of_docker(network.docker) if network.docker is not None else (),
        *map(flows_of_pod, network.pods),
    )


@lru_cache(maxsize=8192)
def flows_of_pod(pod: Pod) -> frozenset[Flow]:
    """Return every flow of one pod."""
    return pod_flows(pod) | pod_ingress_flows(pod) | hairpin_flows(pod)


@lru_cache(maxsize=65536)
def flows_of_peer(peer: Peer) -> frozenset[Flow]:
    """Return every flow of one peer."""
    return peer_flows(peer) | peer_node_port_flows(peer)


@lru_cache(maxsize=1)
def flows_of_docker(docker: DockerNetwork) -> frozenset[Flow]:
    """Return every flow of Docker's bridge."""
    return docker_flows(docker) | docker_ingress_flows(docker)


@lru_cache(maxsize=2)
def _all_peers_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    return frozenset().union(*map(flows_of_peer, peers))
