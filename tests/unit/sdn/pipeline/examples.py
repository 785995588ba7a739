"""A node, its network without pods, and generated ports of services."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from hypothesis import strategies as st

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.topology import Cluster, Node, NodeNetwork, Peer

NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
VIEW = NodeNetwork(
    CLUSTER, NODE, frozenset({Peer("b", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))}), frozenset()
)

backends = st.lists(
    st.builds(
        EndpointInfo, st.integers(2, 9).map(lambda n: IPv4Address("10.128.0.0") + n), st.sampled_from((80, 8080))
    ),
    max_size=4,
    unique=True,
).map(tuple)


@st.composite
def port_sets(draw: st.DrawFn) -> dict[ServicePortName, ServicePortInfo]:
    """Ports with fronts of their own; outside addresses and backends may be shared."""
    found = {}
    for number in draw(st.sets(st.integers(1, 6))):
        key = ServicePortName("red", f"s{number}", "", draw(st.sampled_from(list(Protocol))))
        outside = draw(st.sets(st.sampled_from((IPv4Address("172.29.0.1"), IPv4Address("172.29.0.2")))))
        found[key] = ServicePortInfo(
            key=key,
            vnid=draw(st.sampled_from((0, 10))),
            cluster_ip=draw(st.none() | st.just(IPv4Address("172.30.0.0") + number)),
            port=100 + number,
            node_port=draw(st.sampled_from((0, 30000 + number))),
            external_ips=tuple(sorted(outside)),
            internal_endpoints=draw(backends),
            cluster_endpoints=draw(backends),
            affinity_timeout_seconds=draw(st.sampled_from((0, 10800))),
        )
    return found
