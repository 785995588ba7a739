"""Flows of projects with multicast. Pure."""

from __future__ import annotations

from functools import lru_cache

from sdn.model.flow import Action, Flow, Goto, Output, RegMove, SetField
from sdn.model.match import TUN_DST, TUN_ID, Match, field_equals, ip
from sdn.pipeline.cookies import NODE_COOKIE, make_flow
from sdn.pipeline.pod_connectivity import MULTICAST
from sdn.pipeline.tables import MAX_PEERS_PER_FLOW, SRC_VNID, Priority, Table
from sdn.topology import VXLAN0, DockerNetwork, Peer, Pod


def multicast_flows(
    vnids: frozenset[int], peers: frozenset[Peer], pods: frozenset[Pod], docker: DockerNetwork | None = None
) -> frozenset[Flow]:
    """Let pods of these VNIDs send to many: to every peer, and to every pod of this node with the same VNID.

    What comes out of a tunnel goes to this node's pods only. The sender gets no copy. Multicast of all other VNIDs,
    and that of the node itself, is dropped; so is broadcast.
    """
    if not vnids:
        return frozenset()
    rows = set(multicast_tunnel_flows(peers))
    first = Table.FLOOD if peers else Table.DELIVER
    for vnid in vnids:
        theirs = ip(dst=MULTICAST) & field_equals(SRC_VNID, vnid)
        ours = sorted(pod.ofport for pod in pods if pod.vnid == vnid)
        ours += [docker.ofport] if docker is not None and docker.vnid == vnid else []
        rows.add(make_flow(Table.ROUTE, Priority.HOST, theirs, RegMove(SRC_VNID, TUN_ID, 32), Goto(first)))
        rows.add(make_flow(Table.DELIVER, Priority.SUBNET, theirs, *map(Output, ours)))
    return frozenset(rows)


@lru_cache(maxsize=2)
def multicast_tunnel_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    """One copy for every peer, the VNID in the tunnel key; in as many tables as it takes, as far as there are any."""
    addresses = [int(peer.address) for peer in sorted(peers)]
    chunks = [addresses[begin : begin + MAX_PEERS_PER_FLOW] for begin in range(0, len(addresses), MAX_PEERS_PER_FLOW)]
    rows = set()
    del chunks[Table.ANSWER - Table.FLOOD :]
    for number, chunk in enumerate(chunks):
        table = Table.FLOOD + number
        copies: list[Action] = []
        for address in chunk:
            copies += (SetField(TUN_DST, address), Output(VXLAN0))
        onward = table + 1 if number + 1 < len(chunks) else int(Table.DELIVER)
        rows.add(Flow(table, int(Priority.DEFAULT), Match(), (*copies, Goto(onward)), NODE_COOKIE))
    return frozenset(rows)
