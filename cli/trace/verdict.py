"""What a trace means for somebody who asks why packets pass: the reason, and what would change it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from cli.trace.explain import BROADCAST, explain
from cli.trace.topology import ClusterTopology, Hop, Host

OUTSIDE = Host(IPv4Address("198.51.100.1"), "outside")
"""A host outside of the cluster; the address is one of a documentation network (RFC 5737)."""

GLOBAL_VNID = 0
MULTICAST_ANNOTATION = "netnamespace.network.openshift.io/multicast-enabled"
CHANGE, SEE = "to change it: ", "to see why: "


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether packets pass, the sentence that says why, and a command that would change it or shows what is missing."""

    passes: bool
    sentence: str
    advice: str = ""


def verdict(source: Host, target: Host, hops: list[Hop], topology: ClusterTopology) -> Verdict:
    """Return the verdict about a traced packet."""
    sentence = explain(source, target, hops, topology)
    kind = sentence.partition(" ")[0]
    if kind in ("dropped", "refused"):
        return Verdict(False, sentence, _advice(source, target, hops, topology))
    return Verdict(True, sentence + _reason(source, target, hops, topology))


def sender_problem(source: Host, topology: ClusterTopology) -> str:
    """Return why nothing sends packets from a source, and what is accepted; empty if something does."""
    if source == OUTSIDE or source.enters:
        return ""
    if source.name or source.address in topology.services:
        return f"SRC is {source}, a service, which only receives; one of its pods is accepted"
    node = topology.node_at(source.address)
    if node:
        return f"SRC is {source}, an address of {node}; {node} is accepted"
    if topology.is_inside(source.address):
        return f"SRC is {source}, which is in the subnet of no node; PROJECT/POD or a node is accepted"
    return f"SRC is {source}, which is no address of the cluster; outside is accepted"


def not_judged(source: Host, target: Host) -> str:
    """Return why the pod network does not decide about packets to a target; empty if it does."""
    address = target.address
    if target.name:
        return ""
    if address.is_loopback or address.is_unspecified:
        return f"packets to {address} do not leave {source}: the address is that of the sender itself"
    if address.is_link_local:
        return f"{address} is on the link of the node of {source}, and what answers there is no part of the pod network"
    if address.is_reserved and address != BROADCAST:
        return f"{address} is a reserved address (240.0.0.0/4), which no host has"
    return ""


def outside_to_pod(pod: Host) -> Verdict:
    """Return the verdict about a new connection from outside to the address of a pod."""
    project, _, name = pod.name.partition("/")
    because = f"the firewall of {pod.node} lets nobody outside connect to the address of a pod"
    return Verdict(
        False,
        f"dropped because {because}, only to services with a node port or external IP and to host ports",
        f"{CHANGE}kubectl expose pod -n {project} {name} --type=NodePort --port=PORT" if project else "",
    )


def outside_to_node(node: str) -> Verdict:
    """Return the verdict about a connection from outside to a port of a node that is no node port of a service."""
    return Verdict(
        True,
        f"delivered: outside reaches {node} itself, because the pod network filters nothing there",
    )


def outside_to_other_port(service: Host, port: int) -> Verdict:
    """Return the verdict about a connection from outside to a port that a service does not have."""
    project, name = service.name.split("/")
    return Verdict(
        False, f"dropped because {service} has no port {port}", f"{SEE}kubectl get service -n {project} {name}"
    )


def outside_to_cluster_ip(service: Host) -> Verdict:
    """Return the verdict about a connection from outside to a service without a node port and external IP."""
    project, _, name = service.name.partition("/")
    because = f"{service} has a cluster IP only, which is for pods and nodes: it has no node port and no external IP"
    patch = '{"spec": {"type": "NodePort"}}'
    return Verdict(
        False, f"dropped because {because}", f"{CHANGE}kubectl patch service -n {project} {name} -p '{patch}'"
    )


def _reason(source: Host, target: Host, hops: list[Hop], topology: ClusterTopology) -> str:
    """Return why the VNIDs let a packet pass, to be appended to the sentence; empty if they do not decide."""
    service = hops[0].result.service
    owner = service.service.partition("/")[0] if service is not None else target.project
    if not source.project or not owner or owner not in topology.vnids:
        return ""
    vnids = topology.vnids
    own, theirs = vnids.get(source.project), vnids[owner]
    if source.project == owner:
        return f", because both belong to {owner} (VNID {theirs})"
    if own == theirs:
        return f", because {source.project} and {owner} share VNID {theirs}"
    if GLOBAL_VNID in {own, theirs}:
        return (
            f", because {owner if theirs == GLOBAL_VNID else source.project} has VNID 0, which is open to all projects"
        )
    return ""


def _advice(source: Host, target: Host, hops: list[Hop], topology: ClusterTopology) -> str:
    """Return the command that would let a dropped packet pass, or shows what is missing; empty if there is none."""
    first, last = hops[0].result, hops[-1].result
    if first.service is not None and not first.endpoint:
        project, _, name = first.service.service.partition("/")
        if not first.service.cluster_endpoints:
            return f"{SEE}kubectl get pods,endpoints -n {project}"
        if source.project and first.vnid not in {first.service.vnid, GLOBAL_VNID}:
            return _join(source.project, project)
        policy = "internalTrafficPolicy" if target.address in topology.services else "externalTrafficPolicy"
        patch = f'{{"spec": {{"{policy}": "Cluster"}}}}'
        return f"{CHANGE}kubectl patch service -n {project} {name} -p '{patch}'"
    if first.endpoint:
        target = topology.find_host(first.endpoint.partition(":")[0]) or target
    advise = _ADVICE.get(last.steps[-1].drop_reason if last.steps else "")
    return advise(source, target, topology) if advise is not None else ""


def _join(source: str, target: str) -> str:
    return f"{CHANGE}podlane network join {source} --to {target}" if source and target else ""


def _join_projects(source: Host, target: Host, _: ClusterTopology) -> str:
    return _join(source.project, target.project)


def _show_service(_: Host, target: Host, topology: ClusterTopology) -> str:
    frontend = topology.frontend(target.address)
    if frontend is None:
        return f"{SEE}kubectl get services -A"
    project, name = frontend.name.split("/")
    return f"{SEE}kubectl get service -n {project} {name}"


def _enable_multicast(source: Host, _: Host, __: ClusterTopology) -> str:
    project = source.project
    return f"{CHANGE}kubectl annotate netnamespace {project} {MULTICAST_ANNOTATION}=true" if project else ""


_ADVICE: dict[str, Callable[[Host, Host, ClusterTopology], str]] = {
    "other_project": _join_projects,
    "no_service": _show_service,
    "multicast_disabled": _enable_multicast,
    "no_pod": lambda *_: f"{SEE}kubectl get pods -A -o wide",
    "no_route": lambda *_: f"{SEE}podlane network status",
    "no_vnid": lambda *_: f"{SEE}podlane network status",
}
"""By drop reason, as in the metric `podlane_sdn_dropped_packets`."""
