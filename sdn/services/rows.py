"""Served ports → rows and groups of the switch, for what the pods of this node call. Pure.

Rows of one port do not depend on those of another; a change of one port is a change of its own rows and groups, and of
the few rows that ports share, which are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address
from zlib import crc32

from sdn.flow import (
    Action,
    Bucket,
    Flow,
    Goto,
    Group,
    Learn,
    Pick,
    Resubmit,
    Rows,
    SetField,
    ToGroup,
    Track,
)
from sdn.flows import ANSWERS, CALLS_A_SERVICE, DROPS, SERVICE_COOKIE, senders, to_node
from sdn.match import Match, answering, called, called_in_parts, exactly, ip
from sdn.pipeline import (
    CHOICE,
    CHOICE_PORT,
    GLOBAL_VNID,
    KIND,
    SERVICE_NUMBER,
    SERVICES,
    Kind,
    Priority,
    Table,
)
from sdn.services.served_port import Backend, PortChange, PortKey, Protocol, ServedPort
from sdn.view import Node

HASH_VALUES = 64
"""So many values of a hash Open vSwitch deals out to the buckets of a group at most."""
LONGEST_IDLE_SECONDS = 0xFFFF
"""A row's timeout has 16 bits."""


class Board:
    """What the switch holds for the ports of this node; remembers the rows of each.

    With `by_proxy` every allowed call goes to the node, whose proxy takes it.
    """

    def __init__(self, node: Node, by_proxy: bool = False) -> None:
        self._node = node
        self._by_proxy = by_proxy
        self._rows: dict[PortKey, Rows] = {}
        self._owners: dict[int, tuple[PortKey, bool]] = {}
        self._numbers: dict[tuple[PortKey, bool], int] = {}
        self._shared: Counter[Flow] = Counter()

    def replace(self, ports: Iterable[ServedPort]) -> Rows:
        """Forget everything; these are the ports now."""
        self._rows, self._owners, self._numbers, self._shared = {}, {}, {}, Counter()
        for port in sorted(ports, key=lambda port: port.key):
            self._add(port)
        return self.rows()

    def edit(self, change: PortChange) -> tuple[Rows, Rows]:
        """What goes and what comes by this change."""
        ports = (*change.gone, *change.come)
        shared = {row for port in ports for row in self._shared_rows(port)}
        here = {row for row in shared if self._shared[row]}
        old = _union(self._rows.get(port.key, Rows()) for port in ports)
        kept = {port.key for port in change.come}
        for port in change.gone:
            self._remove(port, forget_numbers=port.key not in kept)
        for port in change.come:
            self._add(port)
        new = _union(self._rows.get(port.key, Rows()) for port in ports)
        gone, come = old.flows | here, new.flows | {row for row in shared if self._shared[row]}
        return Rows(gone - come, old.groups - new.groups), Rows(come - gone, new.groups - old.groups)

    def rows(self) -> Rows:
        """All that the switch is to hold for services."""
        every = _union(self._rows.values())
        return Rows(every.flows | (+self._shared).keys(), every.groups)

    def _add(self, port: ServedPort) -> None:
        inside = self._number(port.key, is_inside=True)
        everywhere = inside if port.inside == port.everywhere else self._number(port.key, is_inside=False)
        self._rows[port.key] = port_rows(port, self._node, self._by_proxy, inside, everywhere)
        self._shared.update(self._shared_rows(port))

    def _remove(self, port: ServedPort, forget_numbers: bool) -> None:
        if self._rows.pop(port.key, None) is None:
            return
        self._shared.subtract(self._shared_rows(port))
        for owner in ((port.key, True), (port.key, False)) if forget_numbers else ():
            self._owners.pop(self._numbers.pop(owner, -1), None)

    def _shared_rows(self, port: ServedPort) -> frozenset[Flow]:
        backends = {one.port for one in (*port.inside, *port.everywhere)} | port.leaving_ports
        answers = (answer_rows(port.key.protocol, number) for number in backends if not self._by_proxy)
        return frozenset(map(front_row, port.outside_ips)).union(*answers)

    def _number(self, key: PortKey, is_inside: bool) -> int:
        """Follows from the key, unless another has taken it."""
        owner = (key, is_inside)
        known = self._numbers.get(owner)
        if known is not None:
            return known
        text = f"{key.namespace}/{key.service}:{key.port_name}/{int(key.protocol)}{'' if is_inside else '*'}"
        number = _short(text)
        while self._owners.get(number, owner) != owner:
            text += "'"
            number = _short(text)
        self._numbers[owner], self._owners[number] = number, owner
        return number


@lru_cache(maxsize=4096)
def front_row(address: IPv4Address) -> Flow:
    """Packets to an address that services have outside of the cluster pass connection tracking, all others ROUTE."""
    return _row(Table.CALLED, Priority.SUBNET, ip(dst=address), CALLS_A_SERVICE, owner=SERVICE_COOKIE)


@lru_cache(maxsize=4096)
def answer_rows(protocol: Protocol, port: int) -> frozenset[Flow]:
    """Packets for pods of this node from a port that backends have may be answers, and pass connection tracking."""
    matches = answering(protocol, port)
    return frozenset(_row(Table.ANSWER, Priority.EXACT, match, ANSWERS, owner=SERVICE_COOKIE) for match in matches)


def port_rows(port: ServedPort, node: Node, by_proxy: bool, inside: int, everywhere: int) -> Rows:
    """Let the pods of this node call one port of one service: at its cluster IP, outside addresses and node port.

    A new call from the service's VNID or from VNID 0 goes to one of the backends; a service of VNID 0 may be called by
    all. Without backends it goes to the node, which refuses it. Whoever else calls an outside address at this port is
    dropped here; at the cluster IP and at a node port `service_flows` drops him. So is whoever begins with a packet in
    fragments: on the netdev datapath all but the first tell nothing of ports. `inside` and `everywhere` number the
    groups of callers at the cluster IP and elsewhere; both may be one.
    """
    protocol, owner = port.key.protocol, SERVICE_COOKIE | inside
    outside = [called(protocol, port.port, dst=address) for address in port.outside_ips]
    at_node = [called(protocol, port.node_port) & exactly(KIND, Kind.NODE)] if port.node_port else []
    at_cluster_ip = [called(protocol, port.port, dst=port.cluster_ip)] if port.cluster_ip is not None else []
    rows: set[Flow] = set()
    groups: set[Group] = set()
    for number, backends, fronts in (
        (inside, port.inside, at_cluster_ip),
        (everywhere, port.everywhere, outside + at_node),
    ):
        if not fronts:
            continue
        refused = by_proxy or not backends
        actions, its = (to_node(node), Rows()) if refused else _way(port, number, backends, owner)
        rows |= its.flows
        groups |= its.groups
        for front in fronts:
            rows |= {
                _row(Table.SERVICE, Priority.EXACT, front & who, *actions, owner=owner) for who in senders(port.vnid)
            }
    in_parts = [called_in_parts(protocol, port.port, dst=address) for address in port.outside_ips]
    closed = in_parts if port.vnid == GLOBAL_VNID else outside + in_parts
    rows |= {_row(Table.SERVICE, Priority.SUBNET, front, owner=owner | DROPS) for front in closed}
    return Rows(frozenset(rows), frozenset(groups))


def _row(table: Table, priority: Priority, match: Match, *actions: Action, owner: int) -> Flow:
    return Flow(int(table), int(priority), match, actions, owner)


def _way(port: ServedPort, number: int, backends: tuple[Backend, ...], owner: int) -> tuple[tuple[Action, ...], Rows]:
    """How new calls get to one of these backends, and the rows and the group that it takes.

    A group does not look at the ports of UDP, and would lead all calls of one pod to one backend.
    """
    its_number = SetField(SERVICE_NUMBER, number)
    if port.affinity_seconds:
        kept = _keeping_rows(number, backends, port.affinity_seconds, owner)
        return (its_number, Resubmit(Table.AFFINITY), Goto(Table.CHOSEN)), Rows(frozenset(kept))
    if len(backends) == 1:
        return (_to(backends[0]),), Rows()
    if port.key.protocol is Protocol.UDP:
        pick = Pick(len(backends), CHOICE)
        dealt = _dealing_rows(number, backends, owner)
        return (its_number, pick, Goto(Table.BACKEND)), Rows(frozenset(dealt))
    return (ToGroup(number),), Rows(groups=frozenset({_group(number, backends)}))


def _keeping_rows(number: int, backends: tuple[Backend, ...], seconds: int, owner: int) -> Iterator[Flow]:
    """Keep a caller at the backend that it has while it is there; otherwise pick one, and note that.

    By the connection: a caller whose time is over may get another one, as with kube-proxy.
    """
    ours = exactly(SERVICE_NUMBER, number)
    pick = (Pick(len(backends), CHOICE), Goto(Table.BACKEND))
    yield _row(Table.CHOSEN, Priority.REST, ip() & ours, *pick, owner=owner)
    for place, one in enumerate(sorted(backends)):
        is_it = exactly(CHOICE, int(one.address)) & exactly(CHOICE_PORT, one.port)
        yield _row(Table.CHOSEN, Priority.EXACT, ip() & ours & is_it, _to(one), owner=owner)
        learn = Learn(
            Table.AFFINITY,
            Priority.EXACT,
            owner,
            min(seconds, LONGEST_IDLE_SECONDS),
            (SERVICE_NUMBER, number),
            ((CHOICE, int(one.address)), (CHOICE_PORT, one.port)),
        )
        yield _row(Table.BACKEND, Priority.EXACT, ip() & ours & exactly(CHOICE, place), learn, _to(one), owner=owner)


def _dealing_rows(number: int, backends: tuple[Backend, ...], owner: int) -> Iterator[Flow]:
    """Lead a call to the backend that was picked for it."""
    for place, one in enumerate(sorted(backends)):
        match = ip() & exactly(SERVICE_NUMBER, number) & exactly(CHOICE, place)
        yield _row(Table.BACKEND, Priority.EXACT, match, _to(one), owner=owner)


def _group(number: int, backends: tuple[Backend, ...]) -> Group:
    """Deal out the hash evenly: one bucket of little weight makes Open vSwitch use as many values as it can."""
    ordered = sorted(backends)
    weight = max(1, (HASH_VALUES - 1) // len(ordered))
    buckets = [Bucket(weight, (_to(one),)) for one in ordered]
    return Group(number, (*buckets, Bucket(1, buckets[0].actions)))


def _to(backend: Backend) -> Track:
    return Track(SERVICES, int(Table.ROUTE), commit=True, dst=backend.address, port=backend.port)


def _union(many: Iterable[Rows]) -> Rows:
    """All of them together."""
    parts = list(many)
    return Rows(frozenset().union(*(one.flows for one in parts)), frozenset().union(*(one.groups for one in parts)))


def _short(text: str) -> int:
    return crc32(text.encode()) & 0x7FFFFFFF
