"""Flows and groups that balance the connections of this node's pods to services. Pure.

Flows of one service port do not depend on those of another. Several ports can share a flow, such as that of an external
IP; the number of ports that need such a flow is counted. A change of one port changes its own flows and groups, and the
shared flows that appear or are no longer needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

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
    dst_port,
    field_equals,
    from_port,
    icmp,
    in_port,
    ip,
    new_connection,
    new_connection_fragment,
)
from sdn.model.service_port import (
    EndpointInfo,
    Protocol,
    ProxyMode,
    ServicePortChange,
    ServicePortInfo,
    ServicePortName,
)
from sdn.pipeline.cookies import NODE_COOKIE, pod_cookie, service_cookie
from sdn.pipeline.drops import DropReason
from sdn.pipeline.flows import make_flow
from sdn.pipeline.isolation import allowed_sources
from sdn.pipeline.pod_connectivity import deliver_to_gateway, permit_node_access
from sdn.pipeline.tables import (
    CT_ZONE_HAIRPIN,
    CT_ZONE_SERVICE,
    DESTINATION,
    ENDPOINT_INDEX,
    ENDPOINT_IP,
    ENDPOINT_PORT,
    FROM_ENDPOINT,
    HAIRPIN_IP,
    MAX_PORTS_WITH_SENDERS,
    MAX_SENDERS,
    SERVICE_ID,
    SRC_VNID,
    Destination,
    Priority,
    Table,
)
from sdn.topology import GATEWAY_OFPORT, GLOBAL_VNID, Cluster, Node, Peer, Pod, mac_of

SERVICE_COOKIE = service_cookie()
"""The cookie of flows that several service ports may share."""

CT_SERVICE = Ct(CT_ZONE_SERVICE, Table.SERVICE_LB)
"""Looks up a packet to a service; in an established connection, it gets the address of its endpoint."""

CT_SERVICE_REPLY = Ct(CT_ZONE_SERVICE, Table.POD_OUTPUT)
"""Restores the address of the service in the reply of an endpoint."""

MAY_BE_REPLY: tuple[Action, ...] = (SetField(FROM_ENDPOINT, 1), Goto(Table.SERVICE_UNDNAT))
"""Continues with a packet whose sender may be an endpoint of a service."""

ICMP_ERRORS = (3, 11)
"""Destination unreachable, time exceeded (RFC 792)."""

CT_NODE: tuple[Action, ...] = (SetField(DESTINATION, Destination.NODE), CT_SERVICE)
"""Looks up a packet to the address of a node, and marks it as one that a node port may accept."""

USED_ENDPOINT_SECONDS = 10_800
"""Seconds for which an endpoint stays in USED_ENDPOINTS after the last packet of its connections.

TCP keepalive of Linux sends a packet after two hours.
"""

REMEMBER_ENDPOINT = Learn(
    Table.USED_ENDPOINTS,
    Priority.HIGH,
    NODE_COOKIE,
    USED_ENDPOINT_SECONDS,
    None,
    ((FROM_ENDPOINT, 1),),
    of_destination=True,
)
"""Remembers the receiver of a packet that is part of a connection to a service.

Its replies are found when it is no endpoint any more.
"""

MAX_USED_OUTSIDE = 1000
"""The most endpoints outside of the cluster network that are in USED_ENDPOINTS.

Whoever may write EndpointSlices may use as many addresses as the Internet has servers. Pods cannot be more than the
cluster network has addresses.
"""

REMEMBER_OUTSIDE = replace(REMEMBER_ENDPOINT, cookie=SERVICE_COOKIE, limit=MAX_USED_OUTSIDE)
"""Remembers an endpoint outside of the cluster network, while there are not too many."""

FROM_AN_ENDPOINT = field_equals(FROM_ENDPOINT, 1)

TO_NODE = field_equals(DESTINATION, Destination.NODE)

HAIRPIN_SNAT: tuple[Action, ...] = (
    SetField(DESTINATION, Destination.HAIRPIN),
    Ct(CT_ZONE_HAIRPIN, Table.POD_OUTPUT, commit=True, src=HAIRPIN_IP),
)


@lru_cache(maxsize=1)
def service_node_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Find connections to services, and restore the service address in their replies.

    Packets to the service network and to node addresses pass connection tracking. Those of established connections
    have the address of their endpoint then, and continue in L3_FORWARDING. New connections meet the flows of service
    ports. If none matches, a packet to the service network is dropped, and so is one to a node port: the node's network
    stack would send it back into the bridge as its own, with VNID 0. All other packets continue in L3_FORWARDING.

    Replies pass connection tracking only if two things hold, because a packet that is matched by its port or by the
    state of its connection needs more entries in the datapath's cache. The sender is an endpoint (ENDPOINT_LOOKUP,
    `sender_flows`), or was one when a connection to it began (USED_ENDPOINTS; of those outside of the cluster network,
    MAX_USED_OUTSIDE). And the packet comes from the port of an endpoint (SERVICE_UNDNAT, `reply_flows`), or is an ICMP
    error. ICMP errors from tun0 pass in any case: a router on the way to an endpoint outside of the cluster may send
    them. Packets without a connection pass connection tracking unchanged.

    Packets that a pod sends to itself through a service (`hairpin_flows`) come back to it: POD_OUTPUT sends them out of
    the port from which they came, with the gateway's MAC. The pod's replies to HAIRPIN_IP pass zone 2, which restores
    the source address.
    """
    send_back = (RegMove(ETH_SRC, ETH_DST, 48), SetField(ETH_SRC, mac_of(node.gateway)), OutputInPort())
    flows = [
        make_flow(Table.SERVICE_CONNTRACK, Priority.NORMAL, ip(dst=cluster.service_network), CT_SERVICE),
        make_flow(Table.SERVICE_CONNTRACK, Priority.HIGH, ip(dst=node.address), *CT_NODE),
        make_flow(
            Table.SERVICE_CONNTRACK,
            Priority.HIGH,
            ip(dst=HAIRPIN_IP),
            SetField(DESTINATION, Destination.HAIRPIN),
            Ct(CT_ZONE_HAIRPIN, Table.ENDPOINT_LOOKUP),
        ),
        make_flow(Table.SERVICE_CONNTRACK, Priority.MISS, ip(), Goto(Table.L3_FORWARDING)),
        *(
            make_flow(
                Table.SERVICE_LB,
                Priority.TOP,
                ip(dst=network) & ct_state("est"),
                REMEMBER_ENDPOINT,
                Goto(Table.L3_FORWARDING),
            )
            for network in cluster.networks
        ),
        make_flow(
            Table.SERVICE_LB, Priority.UPPER, ip() & ct_state("est"), REMEMBER_OUTSIDE, Goto(Table.L3_FORWARDING)
        ),
        make_flow(Table.SERVICE_LB, Priority.TOP, ip() & ct_state("rel"), Goto(Table.L3_FORWARDING)),
        make_flow(Table.SERVICE_LB, Priority.LOW, ip(dst=cluster.service_network), drop=DropReason.NO_SERVICE),
        make_flow(Table.SERVICE_LB, Priority.MISS, ip(), Goto(Table.L3_FORWARDING)),
        make_flow(Table.ENDPOINT_LOOKUP, Priority.TOP, in_port(GATEWAY_OFPORT) & icmp(), *MAY_BE_REPLY),
        make_flow(
            Table.ENDPOINT_LOOKUP,
            Priority.MISS,
            ip(),
            Resubmit(Table.USED_ENDPOINTS),
            Goto(Table.SERVICE_UNDNAT),
        ),
        make_flow(Table.SERVICE_UNDNAT, Priority.MISS, ip(), Goto(Table.POD_OUTPUT)),
        *(
            make_flow(Table.SERVICE_UNDNAT, Priority.HIGH, FROM_AN_ENDPOINT & icmp(icmp_type), CT_SERVICE_REPLY)
            for icmp_type in ICMP_ERRORS
        ),
        make_flow(Table.POD_OUTPUT, Priority.TOP, ip() & field_equals(DESTINATION, Destination.HAIRPIN), *send_back),
    ]
    for protocol in Protocol:
        for port, mask in port_range_masks(*cluster.node_ports):
            for match, reason in (
                (new_connection(protocol, port, mask), DropReason.NO_SERVICE),
                (new_connection_fragment(protocol, port, mask), DropReason.SERVICE_FRAGMENT),
            ):
                flows.append(make_flow(Table.SERVICE_LB, Priority.LOW, match & TO_NODE, drop=reason))
    return frozenset(flows)


def port_range_masks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of value and mask that together match the ports from `first` to `last`."""
    while first <= last:
        size = 1
        while first % (2 * size) == 0 and first + 2 * size - 1 <= last:
            size *= 2
        yield first, 0x10000 - size
        first += size


def hairpin_flows(pod: Pod) -> frozenset[Flow]:
    """Apply SNAT to packets that a service sends back to the pod from which they came.

    With another source address, the reply comes back to the switch.
    """
    match = ip(src=pod.address, dst=pod.address)
    return frozenset({make_flow(Table.L3_FORWARDING, Priority.HIGH, match, *HAIRPIN_SNAT, cookie=pod_cookie(pod))})


def peer_node_port_flows(peer: Peer) -> frozenset[Flow]:
    """Look up packets to a peer's node address in connection tracking, because it has node ports."""
    return frozenset({make_flow(Table.SERVICE_CONNTRACK, Priority.HIGH, ip(dst=peer.address), *CT_NODE)})


GROUP_HASH_SLOTS = 64
"""The number of hash values that Open vSwitch distributes over the buckets of a group, at most."""

MAX_IDLE_TIMEOUT = 0xFFFF
"""The timeout of a flow has 16 bits."""


class GroupIds(NamedTuple):
    """Ids of the groups of a service port: for its internal and for its cluster endpoints. They may be equal."""

    internal: int
    cluster: int


class ServiceFlows:
    """Flows and groups of all service ports of this node.

    In userspace mode, every allowed connection goes to the node, where the userspace proxy accepts it.
    """

    def __init__(self, node: Node, mode: ProxyMode = ProxyMode.NFTABLES) -> None:
        self._node = node
        self._mode = mode
        self._flow_sets: dict[ServicePortName, FlowSet] = {}
        self._owners: dict[int, tuple[ServicePortName, bool]] = {}
        self._group_ids: dict[tuple[ServicePortName, bool], int] = {}
        self._shared: Counter[Flow] = Counter()
        self._ports_by_vnid: defaultdict[int, dict[ServicePortName, ServicePortInfo]] = defaultdict(dict)
        self._senders: dict[int, frozenset[IPv4Address | None]] = {}

    def sync(self, ports: Iterable[ServicePortInfo]) -> FlowSet:
        """Replace all service ports. Return their flows and groups."""
        self._flow_sets, self._owners, self._group_ids, self._shared = {}, {}, {}, Counter()
        self._ports_by_vnid.clear()
        for port in sorted(ports, key=lambda port: port.key):
            self._add(port)
        self._senders = {vnid: self._senders_of(vnid) for vnid in self._ports_by_vnid}
        for vnid, senders in self._senders.items():
            self._shared.update(sender_flows(vnid, senders))
        return self.all()

    def update(self, change: ServicePortChange) -> tuple[FlowSet, FlowSet]:
        """Apply a change of service ports. Return the flows and groups that are removed, and those that are added."""
        ports = (*change.removed, *change.added)
        shared = {flow for port in ports for flow in self._shared_flows(port)}
        old_shared = {flow for flow in shared if self._shared[flow]}
        old = _union(self._flow_sets.get(port.key, FlowSet()) for port in ports)
        added_keys = {port.key for port in change.added}
        for port in change.removed:
            self._remove(port, keep_group_ids=port.key in added_keys)
        for port in change.added:
            self._add(port)
        closed, opened = self._update_senders({port.vnid for port in ports})
        new = _union(self._flow_sets.get(port.key, FlowSet()) for port in ports)
        old_flows = old.flows | old_shared | closed
        new_flows = new.flows | {flow for flow in shared if self._shared[flow]} | opened
        return (
            FlowSet(old_flows - new_flows, old.groups - new.groups),
            FlowSet(new_flows - old_flows, new.groups - old.groups),
        )

    def _update_senders(self, vnids: Iterable[int]) -> tuple[frozenset[Flow], frozenset[Flow]]:
        """Recompute the senders of these VNIDs. Return the flows that are removed, and those that are added."""
        closed, opened = Counter[Flow](), Counter[Flow]()
        for vnid in vnids:
            before, after = self._senders.pop(vnid, frozenset()), self._senders_of(vnid)
            if after:
                self._senders[vnid] = after
            closed.update(sender_flows(vnid, before - after))
            opened.update(sender_flows(vnid, after - before))
        changed = closed.keys() | opened.keys()
        present = {flow for flow in changed if self._shared[flow]}
        self._shared.subtract(closed)
        self._shared.update(opened)
        present_now = {flow for flow in changed if self._shared[flow]}
        return frozenset(present - present_now), frozenset(present_now - present)

    def all(self) -> FlowSet:
        """Return the flows and groups of all service ports."""
        flow_set = _union(self._flow_sets.values())
        return FlowSet(flow_set.flows | (+self._shared).keys(), flow_set.groups)

    def _add(self, port: ServicePortInfo) -> None:
        internal = cluster = self._group_id(port.key, is_internal=True)
        if port.internal_endpoints != port.cluster_endpoints:
            cluster = self._group_id(port.key, is_internal=False)
        self._flow_sets[port.key] = service_port_flows(port, self._node, self._mode, GroupIds(internal, cluster))
        self._shared.update(self._shared_flows(port))
        self._ports_by_vnid[port.vnid][port.key] = port

    def _remove(self, port: ServicePortInfo, *, keep_group_ids: bool) -> None:
        if self._flow_sets.pop(port.key, None) is None:
            return
        self._shared.subtract(self._shared_flows(port))
        del self._ports_by_vnid[port.vnid][port.key]
        for owner in () if keep_group_ids else ((port.key, True), (port.key, False)):
            self._owners.pop(self._group_ids.pop(owner, -1), None)

    def _shared_flows(self, port: ServicePortInfo) -> frozenset[Flow]:
        """Return the flows that this port may share with others: of its external IPs and of its endpoints."""
        endpoints = (*port.internal_endpoints, *port.cluster_endpoints)
        flows = set(map(external_ip_flow, port.external_ips))
        if port.health_port:
            flows |= health_check_flows(self._node, port.vnid, port.health_port)
        for endpoint in endpoints:
            if endpoint.is_on_node:
                flows.add(host_endpoint_flow(self._node, port.vnid, port.key.protocol, endpoint))
        if self._mode is not ProxyMode.USERSPACE:
            for number in {endpoint.port for endpoint in endpoints} | port.draining_ports:
                flows |= reply_flows(port.key.protocol, number)
        return frozenset(flows)

    def _senders_of(self, vnid: int) -> frozenset[IPv4Address | None]:
        """Return the addresses of the endpoints of a VNID's services, or None for all senders if there are too many."""
        if self._mode is ProxyMode.USERSPACE:
            return frozenset()
        ports = self._ports_by_vnid[vnid]
        addresses: set[IPv4Address | None] = set()
        for port in ports.values():
            for endpoints in (port.internal_endpoints, port.cluster_endpoints):
                addresses.update([endpoint.address for endpoint in endpoints])
            if len(addresses) > MAX_SENDERS or len(ports) > MAX_PORTS_WITH_SENDERS:
                return frozenset({None})
        return frozenset(addresses)

    def _group_id(self, key: ServicePortName, *, is_internal: bool) -> int:
        """Return the group id of a service port: a hash of its name, unless another one has the same hash."""
        owner = (key, is_internal)
        known = self._group_ids.get(owner)
        if known is not None:
            return known
        text = f"{key.namespace}/{key.service}:{key.port_name}/{int(key.protocol)}{'' if is_internal else '*'}"
        group_id = _hash(text)
        while self._owners.get(group_id, owner) != owner:
            text += "'"
            group_id = _hash(text)
        self._group_ids[owner], self._owners[group_id] = group_id, owner
        return group_id


@lru_cache(maxsize=4096)
def external_ip_flow(address: IPv4Address) -> Flow:
    """Return the flow that sends packets to an external IP of services through connection tracking."""
    return make_flow(Table.SERVICE_CONNTRACK, Priority.NORMAL, ip(dst=address), CT_SERVICE, cookie=SERVICE_COOKIE)


@lru_cache(maxsize=4096)
def host_endpoint_flow(node: Node, vnid: int, protocol: Protocol, endpoint: EndpointInfo) -> Flow:
    """Return the flow that lets pods reach an endpoint at the address of a node, through the service and directly.

    These are the pods that may use the service; those of VNID 0 have a flow in `external_flows`. The node's firewall
    rejects what other pods send there.
    """
    match = ip(dst=endpoint.address) & dst_port(protocol, endpoint.port)
    priority = Priority.LOW
    if vnid != GLOBAL_VNID:
        match, priority = match & field_equals(SRC_VNID, vnid), Priority.HIGH
    return make_flow(Table.EXTERNAL_OUTPUT, priority, match, *_send_to_node(node), cookie=SERVICE_COOKIE)


@lru_cache(maxsize=4096)
def health_check_flows(node: Node, vnid: int, port: int) -> frozenset[Flow]:
    """Return the flows that let pods reach the health checks of a service, which every node answers at this TCP port.

    These are the pods that may use the service. A packet to another port of the range of node ports without a service
    is dropped (`service_node_flows`).
    """
    match = new_connection(Protocol.TCP, port) & TO_NODE
    return frozenset(
        make_flow(Table.SERVICE_LB, Priority.HIGH, match & source, *_send_to_node(node), cookie=SERVICE_COOKIE)
        for source in allowed_sources(vnid)
    )


def _send_to_node(node: Node) -> tuple[Action, ...]:
    """Return the actions that send a packet, through tun0, to the node whose address it has: this or another one."""
    return (*permit_node_access(), *deliver_to_gateway(node))


def sender_flows(vnid: int, senders: Iterable[IPv4Address | None]) -> Iterator[Flow]:
    """Return the flows that find packets of endpoints by their addresses; None stands for all senders of the VNID.

    Services of other VNIDs may have the same endpoints, and then share these flows.
    """
    for address in senders:
        if address is None:
            yield from any_sender_flows(vnid)
        else:
            yield make_flow(Table.ENDPOINT_LOOKUP, Priority.HIGH, ip(src=address), *MAY_BE_REPLY, cookie=SERVICE_COOKIE)


@lru_cache(maxsize=4096)
def any_sender_flows(vnid: int) -> frozenset[Flow]:
    """Return the flows that find packets of all endpoints of a VNID's services, whatever their addresses are.

    Endpoints are pods of the VNID, or outside of the cluster network, from where packets come through tun0.
    """
    matches = {Priority.NORMAL: ip() & field_equals(SRC_VNID, vnid)}
    if vnid != GLOBAL_VNID:
        matches[Priority.LOW] = in_port(GATEWAY_OFPORT) & ip()
    return frozenset(
        make_flow(Table.ENDPOINT_LOOKUP, priority, match, *MAY_BE_REPLY, cookie=SERVICE_COOKIE)
        for priority, match in matches.items()
    )


@lru_cache(maxsize=4096)
def reply_flows(protocol: Protocol, port: int) -> frozenset[Flow]:
    """Return the flows that send possible replies, from a port of endpoints, through connection tracking."""
    return frozenset(
        make_flow(
            Table.SERVICE_UNDNAT, Priority.HIGH, FROM_AN_ENDPOINT & match, CT_SERVICE_REPLY, cookie=SERVICE_COOKIE
        )
        for match in from_port(protocol, port)
    )


def service_port_flows(port: ServicePortInfo, node: Node, mode: ProxyMode, groups: GroupIds) -> FlowSet:
    """Let pods of this node use one service port: at its cluster IP, external IPs and node port.

    Clients with the service's VNID or VNID 0 may use it; a service of VNID 0 is for all. A new connection gets one of
    the endpoints. Without endpoints it goes to the node, which rejects it.

    With externalTrafficPolicy Local, a connection to the node port of another node goes to that node, as with
    kube-proxy. It gets an endpoint of that node, which sees the address of this node, and is dropped if there is none.
    The policy does not hold for the node port of this node and for external IPs.

    Packets of other clients to an external IP are dropped here. At the cluster IP and at a node port,
    `service_node_flows` drops them. A connection that begins with a fragmented packet is dropped as well, because
    the netdev datapath knows the ports of the first fragment only.
    """
    cookie = service_cookie(groups.internal)
    frontends = _frontends(port, node)
    flows = set(_client_flows(port, Priority.NORMAL, frontends.other_nodes, _send_to_node(node), cookie))
    flow_groups: set[Group] = set()
    for group_id, endpoints, matches in (
        (groups.internal, port.internal_endpoints, frontends.internal),
        (groups.cluster, port.cluster_endpoints, frontends.external + frontends.node_port),
    ):
        if not matches:
            continue
        if mode is ProxyMode.USERSPACE or not endpoints:
            actions = deliver_to_gateway(node)
        else:
            actions, needed = _load_balance(port, group_id, endpoints, cookie)
            flows |= needed.flows
            flow_groups |= needed.groups
        flows.update(_client_flows(port, Priority.HIGH, matches, actions, cookie))
    fragments = [new_connection_fragment(port.key.protocol, port.port, dst=address) for address in port.external_ips]
    dropped = dict.fromkeys(fragments, DropReason.SERVICE_FRAGMENT)
    if port.vnid != GLOBAL_VNID:
        dropped |= dict.fromkeys(frontends.external, DropReason.NO_SERVICE)
    for match, reason in dropped.items():
        flows.add(make_flow(Table.SERVICE_LB, Priority.NORMAL, match, cookie=cookie, drop=reason))
    return FlowSet(frozenset(flows), frozenset(flow_groups))


class _Frontends(NamedTuple):
    """Matches on new connections to a service port: at its cluster IP, at external IPs, and at node ports.

    `other_nodes` is for the node ports of other nodes if these select the endpoint. Then `node_port` is for this node
    only; otherwise it is for all nodes.
    """

    internal: list[Match]
    external: list[Match]
    node_port: list[Match]
    other_nodes: list[Match]


def _frontends(port: ServicePortInfo, node: Node) -> _Frontends:
    protocol = port.key.protocol
    internal = [] if port.cluster_ip is None else [new_connection(protocol, port.port, dst=port.cluster_ip)]
    external = [new_connection(protocol, port.port, dst=address) for address in port.external_ips]
    if not port.node_port:
        return _Frontends(internal, external, [], [])
    at_all_nodes = new_connection(protocol, port.node_port) & TO_NODE
    if not port.external_policy_local or not port.cluster_endpoints:
        return _Frontends(internal, external, [at_all_nodes], [])
    here = new_connection(protocol, port.node_port, dst=node.address) & TO_NODE
    return _Frontends(internal, external, [here], [at_all_nodes])


def _client_flows(
    port: ServicePortInfo, priority: Priority, matches: Iterable[Match], actions: tuple[Action, ...], cookie: int
) -> Iterator[Flow]:
    """Yield the flows for connections of clients that may use the service."""
    for match in matches:
        for source in allowed_sources(port.vnid):
            yield make_flow(Table.SERVICE_LB, priority, match & source, *actions, cookie=cookie)


def _load_balance(
    port: ServicePortInfo, group_id: int, endpoints: tuple[EndpointInfo, ...], cookie: int
) -> tuple[tuple[Action, ...], FlowSet]:
    """Return the actions that send a new connection to one of the endpoints, and the flows and group that they need.

    UDP gets no group, because a group does not hash UDP ports and would send all connections of one pod to one
    endpoint.
    """
    set_service_id = SetField(SERVICE_ID, group_id)
    if port.affinity_timeout_seconds:
        flows = _session_affinity_flows(group_id, endpoints, port.affinity_timeout_seconds, cookie)
        return (set_service_id, Resubmit(Table.SESSION_AFFINITY), Goto(Table.AFFINITY_CHECK)), FlowSet(frozenset(flows))
    if len(endpoints) == 1:
        return (_dnat_to(endpoints[0]),), FlowSet()
    if port.key.protocol is Protocol.UDP:
        flows = _endpoint_flows(group_id, endpoints, cookie)
        select = Multipath(len(endpoints), ENDPOINT_INDEX)
        return (set_service_id, select, Goto(Table.ENDPOINT_DNAT)), FlowSet(frozenset(flows))
    return (GroupAction(group_id),), FlowSet(groups=frozenset({_group(group_id, endpoints)}))


def _session_affinity_flows(
    group_id: int, endpoints: tuple[EndpointInfo, ...], timeout_seconds: int, cookie: int
) -> Iterator[Flow]:
    """Send a client to the endpoint that it used before, if that still exists; otherwise select one and remember it.

    The selection hashes the connection, so a client whose affinity has expired may get another endpoint, as with
    kube-proxy.
    """
    service = ip() & field_equals(SERVICE_ID, group_id)
    select = (Multipath(len(endpoints), ENDPOINT_INDEX), Goto(Table.ENDPOINT_DNAT))
    yield make_flow(Table.AFFINITY_CHECK, Priority.MISS, service, *select, cookie=cookie)
    for index, endpoint in enumerate(_sorted_endpoints(endpoints)):
        address = int(endpoint.address)
        remembered = field_equals(ENDPOINT_IP, address) & field_equals(ENDPOINT_PORT, endpoint.port)
        yield make_flow(Table.AFFINITY_CHECK, Priority.HIGH, service & remembered, _dnat_to(endpoint), cookie=cookie)
        learn = Learn(
            Table.SESSION_AFFINITY,
            Priority.HIGH,
            cookie,
            min(timeout_seconds, MAX_IDLE_TIMEOUT),
            (SERVICE_ID, group_id),
            ((ENDPOINT_IP, address), (ENDPOINT_PORT, endpoint.port)),
        )
        selected = service & field_equals(ENDPOINT_INDEX, index)
        yield make_flow(Table.ENDPOINT_DNAT, Priority.HIGH, selected, learn, _dnat_to(endpoint), cookie=cookie)


def _endpoint_flows(group_id: int, endpoints: tuple[EndpointInfo, ...], cookie: int) -> Iterator[Flow]:
    """Apply DNAT to the endpoint whose index was selected."""
    service = ip() & field_equals(SERVICE_ID, group_id)
    for index, endpoint in enumerate(_sorted_endpoints(endpoints)):
        selected = service & _has_endpoint_index(index)
        yield make_flow(Table.ENDPOINT_DNAT, Priority.HIGH, selected, _dnat_to(endpoint), cookie=cookie)


@lru_cache(maxsize=4096)
def _has_endpoint_index(index: int) -> Match:
    return field_equals(ENDPOINT_INDEX, index)


def _sorted_endpoints(endpoints: tuple[EndpointInfo, ...]) -> list[EndpointInfo]:
    """Return endpoints sorted by address and port, as numbers."""
    return sorted(endpoints, key=lambda endpoint: (int(endpoint.address), endpoint.port))


def _group(group_id: int, endpoints: tuple[EndpointInfo, ...]) -> Group:
    """Return a group that distributes connections evenly.

    The additional bucket of weight 1 makes Open vSwitch use as many hash values as it can.
    """
    ordered = _sorted_endpoints(endpoints)
    weight = max(1, (GROUP_HASH_SLOTS - 1) // len(ordered))
    buckets = [Bucket(weight, (_dnat_to(endpoint),)) for endpoint in ordered]
    return Group(group_id, (*buckets, Bucket(1, buckets[0].actions)))


def _dnat_to(endpoint: EndpointInfo) -> Ct:
    return Ct(CT_ZONE_SERVICE, int(Table.L3_FORWARDING), commit=True, dst=endpoint.address, port=endpoint.port)


def _union(flow_sets: Iterable[FlowSet]) -> FlowSet:
    parts = list(flow_sets)
    flows = frozenset[Flow]().union(*(part.flows for part in parts))
    return FlowSet(flows, frozenset[Group]().union(*(part.groups for part in parts)))


def _hash(text: str) -> int:
    return crc32(text.encode()) & 0x7FFFFFFF
