"""A node's network without pods, generated ports of services, and flows as the previous version numbers them."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

from hypothesis import strategies as st
from msgspec.structs import replace

from sdn.model.flow import Action, Bucket, Ct, Flow, Goto, Group, Learn, Resubmit
from sdn.model.match import Match, ct_state, ip
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.cookies import NODE_COOKIE
from sdn.pipeline.service import REMEMBER_ENDPOINT, REMEMBER_OUTSIDE
from sdn.pipeline.tables import FROM_ENDPOINT, Priority, Table
from sdn.topology import NodeNetwork, Peer
from tests.unit.sdn.examples import CLUSTER, NODE

EMPTY_NETWORK = NodeNetwork(
    CLUSTER, NODE, frozenset({Peer("b", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))}), frozenset()
)

endpoints = st.lists(
    st.builds(
        EndpointInfo, st.integers(2, 9).map(lambda n: IPv4Address("10.128.0.0") + n), st.sampled_from((80, 8080))
    ),
    max_size=4,
    unique=True,
).map(tuple)


@st.composite
def port_sets(draw: st.DrawFn) -> dict[ServicePortName, ServicePortInfo]:
    """Generate ports with frontends of their own; external IPs and endpoints may be shared."""
    port_set = {}
    for number in draw(st.sets(st.integers(1, 6))):
        key = ServicePortName("red", f"s{number}", "", draw(st.sampled_from(list(Protocol))))
        external_ips = draw(st.sets(st.sampled_from((IPv4Address("172.29.0.1"), IPv4Address("172.29.0.2")))))
        port_set[key] = ServicePortInfo(
            key=key,
            vnid=draw(st.sampled_from((0, 10))),
            cluster_ip=draw(st.none() | st.just(IPv4Address("172.30.0.0") + number)),
            port=100 + number,
            node_port=draw(st.sampled_from((0, 30000 + number))),
            external_ips=tuple(sorted(external_ips)),
            internal_endpoints=draw(endpoints),
            cluster_endpoints=draw(endpoints),
            external_endpoints=draw(endpoints),
            external_policy_local=draw(st.booleans()),
            health_port=draw(st.sampled_from((0, 30100 + number))),
            affinity_timeout_seconds=draw(st.sampled_from((0, 10800))),
        )
    return port_set


PREVIOUS = {0: 0, 10: 10, 20: 12, 21: 13, 22: 14, 23: 15, 24: 16, 40: 20, 41: 21, 50: 29, 52: 29, 70: 30, 90: 40}
"""Number in the previous version by today's number."""


ESTABLISHED = Flow(13, int(Priority.TOP), ip() & ct_state("est"), (Goto(20),), NODE_COOKIE)
"""The flow of established connections to services in the previous version, which remembered no endpoints."""


def previous_action(action: Action) -> Action:
    if isinstance(action, Goto | Ct | Resubmit | Learn):
        return replace(action, table=PREVIOUS[action.table])
    return action


def previous_flows(flows: Iterable[Flow]) -> frozenset[Flow]:
    """Return these flows as in the previous version, which knew replies by their ports only."""
    return frozenset(previous_flow(flow) for flow in flows if flow.table != Table.ENDPOINT_LOOKUP)


def previous_flow(flow: Flow) -> Flow:
    if flow.actions and flow.actions[0] in (REMEMBER_ENDPOINT, REMEMBER_OUTSIDE):
        return ESTABLISHED
    actions = tuple(map(previous_action, flow.actions))
    return replace(flow, table=PREVIOUS[flow.table], match=without_sender(flow.match), actions=actions)


def without_sender(match: Match) -> Match:
    return Match(tuple(field_match for field_match in match.fields if field_match.field != FROM_ENDPOINT))


def previous_group(group: Group) -> Group:
    return Group(
        group.number,
        tuple(Bucket(bucket.weight, tuple(map(previous_action, bucket.actions))) for bucket in group.buckets),
    )


def renumbered(flow: Flow) -> Flow:
    """Return what becomes of a flow of services from the previous version; it goes on to know replies by ports only."""
    if flow.table != Table.SERVICE_UNDNAT:
        return flow
    return replace(flow, table=int(Table.ENDPOINT_LOOKUP), match=without_sender(flow.match))


def replaced_by_the_proxy(flows: frozenset[Flow]) -> frozenset[Flow]:
    """Return the flows of services between the first write of the node and that of the service proxy."""
    return frozenset(renumbered(flow) for flow in flows if flow.table != Table.ENDPOINT_LOOKUP)
