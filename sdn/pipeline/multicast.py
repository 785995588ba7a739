"""Flows of projects with multicast. Pure."""

from __future__ import annotations

from functools import lru_cache

from sdn.model.flow import Action, Flow, Goto, Output, RegMove, SetField
from sdn.model.match import TUN_DST, TUN_ID, Match, field_equals, ip
from sdn.pipeline.cookies import NODE_COOKIE
from sdn.pipeline.drops import DropReason
from sdn.pipeline.flows import make_flow
from sdn.pipeline.pod_connectivity import MULTICAST
from sdn.pipeline.tables import MAX_PEERS_PER_FLOW, MULTICAST_TUNNEL_TABLES, SRC_VNID, Priority, Table
from sdn.topology import VXLAN_OFPORT, DockerNetwork, Peer, Pod


def multicast_flows(
    vnids: frozenset[int], peers: frozenset[Peer], pods: frozenset[Pod], docker: DockerNetwork | None = None
) -> frozenset[Flow]:
    """Let pods of these VNIDs send multicast to every peer, and to every pod of this node with the same VNID.

    Multicast from a tunnel goes to pods of this node only. The sender gets no copy. A VNID without pods on this node
    has a flow that drops the multicast. Multicast of other VNIDs is dropped by `l3_forwarding_flows`.
    """
    if not vnids:
        return frozenset()
    flows = set(multicast_tunnel_flows(peers))
    first = Table.MULTICAST_TUNNEL if peers else Table.POD_OUTPUT
    for vnid in vnids:
        multicast = ip(dst=MULTICAST) & field_equals(SRC_VNID, vnid)
        ports = sorted(pod.ofport for pod in pods if pod.vnid == vnid)
        ports += [docker.ofport] if docker is not None and docker.vnid == vnid else []
        flows.add(make_flow(Table.L3_FORWARDING, Priority.HIGH, multicast, RegMove(SRC_VNID, TUN_ID, 32), Goto(first)))
        drop = None if ports else DropReason.NO_MULTICAST_RECEIVER
        flows.add(make_flow(Table.POD_OUTPUT, Priority.NORMAL, multicast, *map(Output, ports), drop=drop))
    return frozenset(flows)


@lru_cache(maxsize=2)
def multicast_tunnel_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    """Send one copy to every peer, with the VNID as the tunnel key.

    A flow has at most `MAX_PEERS_PER_FLOW` peers; further peers are in the following tables. Peers for which no table
    is left get no multicast.
    """
    addresses = [int(peer.address) for peer in sorted(peers)]
    chunks = [addresses[begin : begin + MAX_PEERS_PER_FLOW] for begin in range(0, len(addresses), MAX_PEERS_PER_FLOW)]
    del chunks[MULTICAST_TUNNEL_TABLES:]
    flows = set()
    for number, chunk in enumerate(chunks):
        table = Table.MULTICAST_TUNNEL + number
        copies: list[Action] = []
        for address in chunk:
            copies += (SetField(TUN_DST, address), Output(VXLAN_OFPORT))
        next_table = table + 1 if number + 1 < len(chunks) else int(Table.POD_OUTPUT)
        flows.add(Flow(table, int(Priority.MISS), Match(), (*copies, Goto(next_table)), NODE_COOKIE))
    return frozenset(flows)
