"""Flows and groups that balance the connections of this node's pods to services. Pure.

Flows of one service port do not depend on those of another. A change of one port changes its own flows and groups, and
the few flows that ports share, which are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address
from zlib import crc32

from sdn.model.flow import (
    Action,
    Bucket,
    Ct,
    Flow,
    FlowSet,
    Goto,
    Group,
    GroupAction,
    Learn,
    Multipath,
    OutputInPort,
    RegMove,
    Resubmit,
    SetField,
)
from sdn.model.match import (
    ETH_DST,
    ETH_SRC,
    Match,
    ct_state,
    field_equals,
    from_port,
    icmp,
    ip,
    new_connection,
    new_connection_fragment,
)
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.pipeline.cookies import DROP_BIT, make_flow, pod_cookie, service_cookie
from sdn.pipeline.isolation import allowed_sources
from sdn.pipeline.pod_connectivity import deliver_to_gateway
from sdn.pipeline.tables import (
    CT_ZONE_HAIRPIN,
    CT_ZONE_SERVICE,
    DESTINATION,
    ENDPOINT_IP,
    ENDPOINT_PORT,
    HAIRPIN_IP,
    SERVICE_ID,
    Destination,
    Priority,
    Table,
)
from sdn.topology import GLOBAL_VNID, Cluster, Node, Peer, Pod, mac_of

CT_SERVICE = Ct(CT_ZONE_SERVICE, Table.SERVICE)
"""Give a packet of a known call the address of its backend."""

CT_SERVICE_REPLY = Ct(CT_ZONE_SERVICE, Table.DELIVER)
"""Give a backend's answer the address that was called."""

ICMP_ERRORS = (3, 11)
"""Destination unreachable, time exceeded (RFC 792)."""

CT_NODE_PORT: tuple[Action, ...] = (SetField(DESTINATION, Destination.NODE_PORT), CT_SERVICE)

HAIRPIN_SNAT: tuple[Action, ...] = (
    SetField(DESTINATION, Destination.HAIRPIN),
    Ct(CT_ZONE_HAIRPIN, Table.DELIVER, commit=True, src=HAIRPIN_IP),
)


@lru_cache(maxsize=1)
def service_conntrack_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Find what is addressed to services, and give answers the address that was called.

    Packets to the service network and to the addresses of nodes pass connection tracking; those of known calls go to
    their backend by way of ROUTE. New ones meet the flows of services; what meets none is dropped
    if it is addressed to the service network or to a node's port in the range of node ports, which would otherwise
    come back in as the node's own, with VNID 0. Everything else goes on to ROUTE. What may come back from backends has
    rows in ANSWER, here for errors and otherwise in `sdn.pipeline.service`; what belongs to no call passes unchanged.
    """
    back = (RegMove(ETH_SRC, ETH_DST, 48), SetField(ETH_SRC, mac_of(node.gateway)), OutputInPort())
    rows = [
        make_flow(Table.CALLED, Priority.SUBNET, ip(dst=cluster.service_network), CT_SERVICE),
        make_flow(Table.CALLED, Priority.HOST, ip(dst=node.address), *CT_NODE_PORT),
        make_flow(
            Table.CALLED,
            Priority.HOST,
            ip(dst=HAIRPIN_IP),
            SetField(DESTINATION, Destination.HAIRPIN),
            Ct(CT_ZONE_HAIRPIN, Table.ANSWER),
        ),
        make_flow(Table.CALLED, Priority.DEFAULT, ip(), Goto(Table.ROUTE)),
        make_flow(Table.SERVICE, Priority.HIGH, ip() & ct_state("est"), Goto(Table.ROUTE)),
        make_flow(Table.SERVICE, Priority.HIGH, ip() & ct_state("rel"), Goto(Table.ROUTE)),
        make_flow(Table.SERVICE, Priority.CLUSTER, ip(dst=cluster.service_network)),
        make_flow(Table.SERVICE, Priority.DEFAULT, ip(), Goto(Table.ROUTE)),
        make_flow(Table.ANSWER, Priority.DEFAULT, ip(), Goto(Table.DELIVER)),
        *(make_flow(Table.ANSWER, Priority.HOST, icmp(kind), CT_SERVICE_REPLY) for kind in ICMP_ERRORS),
        make_flow(Table.DELIVER, Priority.HIGH, ip() & field_equals(DESTINATION, Destination.HAIRPIN), *back),
    ]
    for protocol in Protocol:
        for port, mask in port_range_masks(*cluster.node_ports):
            whole, in_parts = new_connection(protocol, port, mask), new_connection_fragment(protocol, port, mask)
            at_node = (match & field_equals(DESTINATION, Destination.NODE_PORT) for match in (whole, in_parts))
            rows += (make_flow(Table.SERVICE, Priority.CLUSTER, match) for match in at_node)
    return frozenset(rows)


def port_range_masks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The ports from `first` to `last` as pairs of value and mask."""
    while first <= last:
        size = 1
        while first % (2 * size) == 0 and first + 2 * size - 1 <= last:
            size *= 2
        yield first, 0x10000 - size
        first += size


def hairpin_flows(pod: Pod) -> frozenset[Flow]:
    """Translate the source address of packets that a service sends back to the pod from which they came.

    With another source address, the reply comes back to the switch.
    """
    match = ip(src=pod.address, dst=pod.address)
    return frozenset({make_flow(Table.ROUTE, Priority.HOST, match, *HAIRPIN_SNAT, cookie=pod_cookie(pod))})


def peer_node_port_flows(peer: Peer) -> frozenset[Flow]:
    """Look up packets to a peer's node address in connection tracking, because it has node ports."""
    return frozenset({make_flow(Table.CALLED, Priority.HOST, ip(dst=peer.address), *CT_NODE_PORT)})


GROUP_HASH_SLOTS = 64
"""So many values of a hash Open vSwitch deals out to the buckets of a group at most."""
MAX_IDLE_TIMEOUT = 0xFFFF
"""A row's timeout has 16 bits."""


class ServiceFlows:
    """What the switch holds for the ports of this node; remembers the rows of each.

    With `by_proxy` every allowed call goes to the node, whose proxy takes it.
    """

    def __init__(self, node: Node, by_proxy: bool = False) -> None:
        self._node = node
        self._by_proxy = by_proxy
        self._flow_sets: dict[ServicePortName, FlowSet] = {}
        self._owners: dict[int, tuple[ServicePortName, bool]] = {}
        self._numbers: dict[tuple[ServicePortName, bool], int] = {}
        self._shared: Counter[Flow] = Counter()

    def sync(self, ports: Iterable[ServicePortInfo]) -> FlowSet:
        """Forget everything; these are the ports now."""
        self._flow_sets, self._owners, self._numbers, self._shared = {}, {}, {}, Counter()
        for port in sorted(ports, key=lambda port: port.key):
            self._add(port)
        return self.all()

    def update(self, change: ServicePortChange) -> tuple[FlowSet, FlowSet]:
        """What goes and what comes by this change."""
        ports = (*change.removed, *change.added)
        shared = {row for port in ports for row in self._shared_flows(port)}
        here = {row for row in shared if self._shared[row]}
        old = _union(self._flow_sets.get(port.key, FlowSet()) for port in ports)
        kept = {port.key for port in change.added}
        for port in change.removed:
            self._remove(port, forget_numbers=port.key not in kept)
        for port in change.added:
            self._add(port)
        new = _union(self._flow_sets.get(port.key, FlowSet()) for port in ports)
        gone, come = old.flows | here, new.flows | {row for row in shared if self._shared[row]}
        return FlowSet(gone - come, old.groups - new.groups), FlowSet(come - gone, new.groups - old.groups)

    def all(self) -> FlowSet:
        """All that the switch is to hold for services."""
        every = _union(self._flow_sets.values())
        return FlowSet(every.flows | (+self._shared).keys(), every.groups)

    def _add(self, port: ServicePortInfo) -> None:
        inside = self._allocate_group_id(port.key, is_inside=True)
        everywhere = (
            inside
            if port.internal_endpoints == port.cluster_endpoints
            else self._allocate_group_id(port.key, is_inside=False)
        )
        self._flow_sets[port.key] = service_port_flows(port, self._node, self._by_proxy, inside, everywhere)
        self._shared.update(self._shared_flows(port))

    def _remove(self, port: ServicePortInfo, forget_numbers: bool) -> None:
        if self._flow_sets.pop(port.key, None) is None:
            return
        self._shared.subtract(self._shared_flows(port))
        for owner in ((port.key, True), (port.key, False)) if forget_numbers else ():
            self._owners.pop(self._numbers.pop(owner, -1), None)

    def _shared_flows(self, port: ServicePortInfo) -> frozenset[Flow]:
        backends = {one.port for one in (*port.internal_endpoints, *port.cluster_endpoints)} | port.draining_ports
        answers = (reply_flows(port.key.protocol, number) for number in backends if not self._by_proxy)
        return frozenset(map(external_ip_flow, port.external_ips)).union(*answers)

    def _allocate_group_id(self, key: ServicePortName, is_inside: bool) -> int:
        """Follows from the key, unless another has taken it."""
        owner = (key, is_inside)
        known = self._numbers.get(owner)
        if known is not None:
            return known
        text = f"{key.namespace}/{key.service}:{key.port_name}/{int(key.protocol)}{'' if is_inside else '*'}"
        number = _group_id(text)
        while self._owners.get(number, owner) != owner:
            text += "'"
            number = _group_id(text)
        self._numbers[owner], self._owners[number] = number, owner
        return number


@lru_cache(maxsize=4096)
def external_ip_flow(address: IPv4Address) -> Flow:
    """Packets to an address that services have outside of the cluster pass connection tracking, all others ROUTE."""
    return _row(Table.CALLED, Priority.SUBNET, ip(dst=address), CT_SERVICE, owner=service_cookie())


@lru_cache(maxsize=4096)
def reply_flows(protocol: Protocol, port: int) -> frozenset[Flow]:
    """Packets for pods of this node from a port that backends have may be answers, and pass connection tracking."""
    matches = from_port(protocol, port)
    return frozenset(
        _row(Table.ANSWER, Priority.HOST, match, CT_SERVICE_REPLY, owner=service_cookie()) for match in matches
    )


def service_port_flows(port: ServicePortInfo, node: Node, by_proxy: bool, inside: int, everywhere: int) -> FlowSet:
    """Let the pods of this node call one port of one service: at its cluster IP, outside addresses and node port.

    A new call from the service's VNID or from VNID 0 goes to one of the backends; a service of VNID 0 may be called by
    all. Without backends it goes to the node, which refuses it. Whoever else calls an outside address at this port is
    dropped here; at the cluster IP and at a node port `service_flows` drops him. So is whoever begins with a packet in
    fragments: on the netdev datapath all but the first tell nothing of ports. `inside` and `everywhere` number the
    groups of callers at the cluster IP and elsewhere; both may be one.
    """
    protocol, owner = port.key.protocol, service_cookie(inside)
    outside = [new_connection(protocol, port.port, dst=address) for address in port.external_ips]
    at_node = (
        [new_connection(protocol, port.node_port) & field_equals(DESTINATION, Destination.NODE_PORT)]
        if port.node_port
        else []
    )
    at_cluster_ip = [new_connection(protocol, port.port, dst=port.cluster_ip)] if port.cluster_ip is not None else []
    rows: set[Flow] = set()
    groups: set[Group] = set()
    for number, backends, fronts in (
        (inside, port.internal_endpoints, at_cluster_ip),
        (everywhere, port.cluster_endpoints, outside + at_node),
    ):
        if not fronts:
            continue
        refused = by_proxy or not backends
        actions, its = (
            (deliver_to_gateway(node), FlowSet()) if refused else _load_balance(port, number, backends, owner)
        )
        rows |= its.flows
        groups |= its.groups
        for front in fronts:
            rows |= {
                _row(Table.SERVICE, Priority.HOST, front & who, *actions, owner=owner)
                for who in allowed_sources(port.vnid)
            }
    in_parts = [new_connection_fragment(protocol, port.port, dst=address) for address in port.external_ips]
    closed = in_parts if port.vnid == GLOBAL_VNID else outside + in_parts
    rows |= {_row(Table.SERVICE, Priority.SUBNET, front, owner=owner | DROP_BIT) for front in closed}
    return FlowSet(frozenset(rows), frozenset(groups))


def _row(table: Table, priority: Priority, match: Match, *actions: Action, owner: int) -> Flow:
    return Flow(int(table), int(priority), match, actions, owner)


def _load_balance(
    port: ServicePortInfo, number: int, backends: tuple[EndpointInfo, ...], owner: int
) -> tuple[tuple[Action, ...], FlowSet]:
    """How new calls get to one of these backends, and the rows and the group that it takes.

    A group does not look at the ports of UDP, and would lead all calls of one pod to one backend.
    """
    its_number = SetField(SERVICE_ID, number)
    if port.affinity_timeout_seconds:
        kept = _session_affinity_flows(number, backends, port.affinity_timeout_seconds, owner)
        return (its_number, Resubmit(Table.AFFINITY), Goto(Table.CHOSEN)), FlowSet(frozenset(kept))
    if len(backends) == 1:
        return (_dnat_to(backends[0]),), FlowSet()
    if port.key.protocol is Protocol.UDP:
        pick = Multipath(len(backends), ENDPOINT_IP)
        dealt = _endpoint_flows(number, backends, owner)
        return (its_number, pick, Goto(Table.BACKEND)), FlowSet(frozenset(dealt))
    return (GroupAction(number),), FlowSet(groups=frozenset({_group(number, backends)}))


def _session_affinity_flows(
    number: int, backends: tuple[EndpointInfo, ...], seconds: int, owner: int
) -> Iterator[Flow]:
    """Keep a caller at the backend that it has while it is there; otherwise pick one, and note that.

    By the connection: a caller whose time is over may get another one, as with kube-proxy.
    """
    ours = field_equals(SERVICE_ID, number)
    pick = (Multipath(len(backends), ENDPOINT_IP), Goto(Table.BACKEND))
    yield _row(Table.CHOSEN, Priority.DEFAULT, ip() & ours, *pick, owner=owner)
    for place, one in enumerate(sorted(backends)):
        is_it = field_equals(ENDPOINT_IP, int(one.address)) & field_equals(ENDPOINT_PORT, one.port)
        yield _row(Table.CHOSEN, Priority.HOST, ip() & ours & is_it, _dnat_to(one), owner=owner)
        learn = Learn(
            Table.AFFINITY,
            Priority.HOST,
            owner,
            min(seconds, MAX_IDLE_TIMEOUT),
            (SERVICE_ID, number),
            ((ENDPOINT_IP, int(one.address)), (ENDPOINT_PORT, one.port)),
        )
        yield _row(
            Table.BACKEND,
            Priority.HOST,
            ip() & ours & field_equals(ENDPOINT_IP, place),
            learn,
            _dnat_to(one),
            owner=owner,
        )


def _endpoint_flows(number: int, backends: tuple[EndpointInfo, ...], owner: int) -> Iterator[Flow]:
    """Lead a call to the backend that was picked for it."""
    for place, one in enumerate(sorted(backends)):
        match = ip() & field_equals(SERVICE_ID, number) & field_equals(ENDPOINT_IP, place)
        yield _row(Table.BACKEND, Priority.HOST, match, _dnat_to(one), owner=owner)


def _group(number: int, backends: tuple[EndpointInfo, ...]) -> Group:
    """Deal out the hash evenly: one bucket of little weight makes Open vSwitch use as many values as it can."""
    ordered = sorted(backends)
    weight = max(1, (GROUP_HASH_SLOTS - 1) // len(ordered))
    buckets = [Bucket(weight, (_dnat_to(one),)) for one in ordered]
    return Group(number, (*buckets, Bucket(1, buckets[0].actions)))


def _dnat_to(backend: EndpointInfo) -> Ct:
    return Ct(CT_ZONE_SERVICE, int(Table.ROUTE), commit=True, dst=backend.address, port=backend.port)


def _union(many: Iterable[FlowSet]) -> FlowSet:
    """All of them together."""
    parts = list(many)
    return FlowSet(frozenset().union(*(one.flows for one in parts)), frozenset().union(*(one.groups for one in parts)))


def _group_id(text: str) -> int:
    return crc32(text.encode()) & 0x7FFFFFFF
