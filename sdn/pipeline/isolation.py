"""Flows that decide who may send to a pod. Pure."""

from __future__ import annotations

from functools import partial

from sdn.model.flow import Flow, Output, RegLoad, RegMove, SetField
from sdn.model.match import ETH_DST, IP_DST, Match, field_equals, ip
from sdn.pipeline.cookies import DOCKER_COOKIE, pod_cookie
from sdn.pipeline.drops import DropReason
from sdn.pipeline.flows import make_flow
from sdn.pipeline.pod_connectivity import DOCKER_MAC_PREFIX
from sdn.pipeline.tables import SRC_VNID, Priority, Table
from sdn.topology import GLOBAL_VNID, DockerNetwork, Pod


def pod_ingress_flows(pod: Pod) -> frozenset[Flow]:
    """Let a pod receive from its own project and from VNID 0.

    Packets from other projects are dropped in POD_OUTPUT by a flow of the pod's own, which counts them.
    """
    cookie = pod_cookie(pod)
    deliver = (SetField(ETH_DST, pod.mac), Output(pod.ofport))
    to_pod = ip(dst=pod.address)
    flows = set()
    for source in allowed_sources(pod.vnid):
        flows.add(make_flow(Table.POD_OUTPUT, Priority.NORMAL, to_pod & source, *deliver, cookie=cookie))
    if pod.vnid != GLOBAL_VNID:
        flows.add(make_flow(Table.POD_OUTPUT, Priority.LOW, to_pod, cookie=cookie, drop=DropReason.OTHER_PROJECT))
    return frozenset(flows)


def allowed_sources(vnid: int) -> tuple[Match, ...]:
    """Return matches on the senders from which a VNID receives: the same VNID and VNID 0, or all for VNID 0."""
    if vnid == GLOBAL_VNID:
        return (Match(),)
    return field_equals(SRC_VNID, GLOBAL_VNID), field_equals(SRC_VNID, vnid)


def docker_ingress_flows(docker: DockerNetwork) -> frozenset[Flow]:
    """Let containers outside of any pod receive from the project of Docker's bridge and from VNID 0.

    Packets from other projects are dropped in POD_OUTPUT by a flow that counts them. The MAC of a container follows
    from its IP address.
    """
    to_docker = ip(dst=docker.subnet)
    deliver = (RegMove(IP_DST, ETH_DST, 32), RegLoad(ETH_DST, 32, 16, DOCKER_MAC_PREFIX), Output(docker.ofport))
    docker_flow = partial(make_flow, cookie=DOCKER_COOKIE)
    flows = set()
    for source in allowed_sources(docker.vnid):
        flows.add(docker_flow(Table.POD_OUTPUT, Priority.NORMAL, to_docker & source, *deliver))
    if docker.vnid != GLOBAL_VNID:
        flows.add(docker_flow(Table.POD_OUTPUT, Priority.LOW, to_docker, drop=DropReason.OTHER_PROJECT))
    return frozenset(flows)
