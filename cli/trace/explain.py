"""Explains in one sentence what became of a traced packet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from api.core.services import PROTOCOLS
from api.network.queries import ServicePortReport
from cli.trace.topology import ClusterTopology, Drop, Hop, Host


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """Outcome of a connection to a service: a final `sentence`, or the endpoint `target` to which the packet goes on.

    `suffix` is appended to the sentence about that endpoint.
    """

    sentence: str = ""
    target: Host | None = None
    suffix: str = ""


def service_outcome(source: Host, first: Hop, topology: ClusterTopology) -> ServiceOutcome:
    """Return the outcome of a packet to a service; an empty outcome for other packets."""
    result, service = first.result, first.result.service
    if service is None:
        return ServiceOutcome()
    if not result.endpoint:
        return ServiceOutcome(_stopped(source, first, service, topology))
    address = IPv4Address(result.endpoint.partition(":")[0])
    if not result.steps:
        endpoint = f"{result.endpoint}, an endpoint of {_name(service)} outside of the cluster network"
        return ServiceOutcome(f"forwarded: {first.node} connects to {endpoint}")
    return ServiceOutcome(
        target=topology.find_host(str(address)) or Host(address), suffix=f", an endpoint of {_name(service)}"
    )


def _stopped(source: Host, first: Hop, service: ServicePortReport, topology: ClusterTopology) -> str:
    """Explain why a connection gets no endpoint."""
    result, node, name = first.result, first.node, _name(service)
    if result.steps and first.request.fragment:
        return f"dropped because the switch of {node} lets no connection to {name} begin with a fragment"
    if result.steps and not result.outputs:
        return (
            f"dropped because {topology.vnid_text(source, result.vnid)} may not connect to {name} (VNID {service.vnid})"
        )
    if result.endpoints:
        return f"delivered: {source} reaches the proxy of {node}, which connects to an endpoint of {name}"
    if not service.cluster_endpoints:
        return f"refused by {node}: {name} has no ready endpoint"
    other = topology.node_at(IPv4Address(first.request.target))
    if result.outputs and other and other != node:
        there = f"{other}, with the address of {node}, and gets an endpoint of {name} on {other} only"
        return f"delivered: {source} reaches {there} (externalTrafficPolicy Local)"
    no_local_endpoint = f"{name} accepts connections at endpoints on {node} only, and there is none"
    is_from_outside = not result.steps and source.address not in {topology.gateway(node), topology.addresses.get(node)}
    return f"dropped because {no_local_endpoint}" if is_from_outside else f"refused by {node}: {no_local_endpoint}"


def _name(service: ServicePortReport) -> str:
    return f"the service {service.service}"


def endpoint_lines(first: Hop, topology: ClusterTopology) -> Iterator[str]:
    """Yield a line with the endpoints that the packet may get, and a line for each rejection."""
    result = first.result
    if result.service is None:
        return
    endpoints = [
        _endpoint_text(endpoint, topology) + " (traced)" * (endpoint == result.endpoint)
        for endpoint in result.endpoints
    ]
    seconds = result.service.affinity_seconds
    session_affinity = f"; a client keeps its endpoint for {seconds} s" if seconds else ""
    port = f"{result.service.service} {result.service.port} on {first.node}"
    yield f"{port}: {', '.join(endpoints) or 'no endpoints'}{session_affinity}"
    for rejection in result.rejected:
        yield f"rejected: {rejection.subject} {rejection.reason}"


def _endpoint_text(endpoint: str, topology: ClusterTopology) -> str:
    """Return the endpoint with the name of its pod, if it is one."""
    host = topology.find_host(endpoint.partition(":")[0])
    return f"{host} ({endpoint})" if host is not None and host.name else endpoint


def _classifier_drop(drop: Drop) -> Iterator[str]:
    """Yield why the first table drops the packet: no flow accepts it from this sender."""
    request, node = drop.last.request, drop.last.node
    if request.vlan is not None:
        frames = {"tunnel": "frames in a tunnel", "node": f"{node}'s frames"}.get(
            request.enters, f"{drop.source}'s frames"
        )
        yield f"{frames} may carry no VLAN tag"
    if request.protocol == "ipv6":
        yield "it is IPv6, which the pod network does not carry"
    if request.protocol == "arp-reply":
        yield "only the switch answers ARP requests: no ARP packet reaches another pod"
    yield from _REASONS_BY_ENTRANCE[request.enters](drop)


def _spoofed_pod(drop: Drop) -> Iterator[str]:
    """Yield what a pod spoofed: its MAC or its address."""
    request = drop.last.request
    if request.source_mac and request.source_mac.lower() != _mac(drop.source.address):
        yield f"{request.source_mac} is not {drop.source}'s MAC"
    if drop.source_ip != drop.source.address:
        yield f"{drop.source_ip} is not {drop.source}'s address"


def _spoofed_docker_container(drop: Drop) -> Iterator[str]:
    """Yield why a container outside of pods may not send this packet through the switch."""
    docker = drop.docker
    if docker is not None and drop.source_ip not in docker:
        yield f"{drop.source_ip} is not in {docker}, from which Docker gives addresses on {drop.last.node}"
    if docker is not None and drop.target.address in docker:
        yield f"{drop.target} is a container outside of any pod as well: they reach each other without the switch"


def _invalid_tunnel(drop: Drop) -> Iterator[str]:
    """Yield why a tunnel packet is rejected.

    Its outer source address must be a node's, and its inner one must be of that node's subnet.
    """
    request, node, topology = drop.last.request, drop.last.node, drop.topology
    host, owner = topology.node_at(IPv4Address(request.tunnel_source)), topology.node_of(drop.source_ip)
    if request.protocol == "arp":
        yield "no ARP packet goes through a tunnel: the switch of each node answers by itself"
    if not host:
        yield f"{node} rejects tunnel packets from {request.tunnel_source}: no node has this address"
    elif host == node:
        yield f"{node} rejects tunnel packets from {request.tunnel_source}: it is the node's own address"
    elif not owner:
        yield f"{node} rejects tunnel packets from {request.tunnel_source}: {drop.source_ip} is in no node's subnet"
    elif owner != host:
        subnet = topology.subnets[owner]
        yield f"{node} rejects tunnel packets from {request.tunnel_source}: {subnet} is the subnet of {owner}"
    else:
        yield f"{node} does not know yet that {topology.subnets[owner]} is the subnet of {owner}"


def _invalid_gateway_packet(drop: Drop) -> Iterator[str]:
    """Yield why a packet from tun0 is rejected: it must be of the node itself, or external."""
    request, node, claimed = drop.last.request, drop.last.node, drop.source_ip
    is_own = claimed == drop.topology.gateway(node)
    if not is_own and (request.protocol == "arp" or (drop.source.node == node and drop.source.enters == "node")):
        yield f"{claimed} is not {node}'s address"
    if not is_own and drop.topology.is_inside(claimed):
        yield f"{claimed} is an address of the cluster, and does not come from outside"
    if request.protocol == "arp":
        yield f"{request.source_mac} is not {node}'s MAC"
    if is_own:
        yield f"{node} sends to {drop.target} by its other links: only addresses of the cluster are reached through br0"
    yield f"{drop.target} is not in {drop.topology.subnets.get(node)}: external packets are for {node} only"


def _mac(address: IPv4Address) -> str:
    """Return the MAC of a pod, which is derived from its address."""
    return (b"\x0a\x58" + address.packed).hex(":")


_REASONS_BY_ENTRANCE: dict[str, Callable[[Drop], Iterator[str]]] = {
    "pod": _spoofed_pod,
    "docker": _spoofed_docker_container,
    "tunnel": _invalid_tunnel,
    "node": _invalid_gateway_packet,
}

BROADCAST = IPv4Address("255.255.255.255")
GENERIC = "accepts it"
"""End of the reason for a drop that the pipeline does not explain."""


def _explain_drop(source: Host, target: Host, last: Hop, topology: ClusterTopology) -> str:
    """Return why the last switch drops the packet, to be appended to `dropped because`.

    The table that drops it selects the function. The sentence follows from the packet and the topology. The drop reason
    in the flow's cookie is shown with the step of the trace.
    """
    table = last.result.steps[-1].table if last.result.steps else "classifier"
    reasons = _REASONS_BY_TABLE[table](Drop(source, target, last, topology)) if table in _REASONS_BY_TABLE else iter(())
    return next(reasons, f"no flow of the table {table} {GENERIC}")


def _arp_responder_drop(drop: Drop) -> Iterator[str]:
    """Yield why the switch does not answer an ARP request."""
    target = drop.target.address
    if drop.source_ip == target:
        yield f"the switch ignores announcements: {drop.source} has the address {target}"
    if not drop.topology.is_inside(target):
        yield f"{target} is no address of the cluster: the switch answers for no other"
    yield f"no pod on {drop.last.node} has the address {target}"


def _l3_forwarding_drop(drop: Drop) -> Iterator[str]:
    """Yield why there is no route for the packet."""
    target, topology = drop.target, drop.topology
    host = topology.node_of(target.address)
    if target.address in topology.services:
        yield f"{target.address} is a service address, and no service has it"
    if target.address.is_multicast:
        yield f"multicast is disabled for {drop.sender_vnid_text}"
    if target.address == BROADCAST:
        yield "broadcast is not allowed"
    if target.address.is_loopback:
        yield f"{target.address} is an address of processes of one host: the switch forwards nothing to 127.0.0.0/8"
    if target.node and target.node not in topology.subnets:
        yield f"{target.node} has no subnet"
    if host:
        yield f"{drop.last.node} does not know yet that {topology.subnets[host]} is the subnet of {host}"
    yield f"{target} belongs to no node's subnet"


def _service_lb_drop(drop: Drop) -> Iterator[str]:
    """Yield why no service takes the packet."""
    request, topology, address = drop.last.request, drop.topology, drop.target.address
    if address in topology.services and topology.frontend(address) is None:
        yield f"{address} is a service address, and no service has it"
    if request.protocol.upper() not in PROTOCOLS:
        yield f"services take {', '.join(PROTOCOLS).lower()}, not {request.protocol}"
    if request.fragment == "later":
        yield "only the first fragment carries the port: the switch puts fragments together, a trace cannot"
    port = f"port {request.port}/{request.protocol.upper()}"
    if address in topology.addresses.values():
        yield f"{port} is in the range of node ports, and no service has it"
    yield f"{drop.last.node} serves no {port} of {drop.target}"


def _pod_output_drop(drop: Drop) -> Iterator[str]:
    """Yield why the packet reaches no pod of the last node."""
    target, node, step = drop.target, drop.last.node, drop.last.result.steps[-1]
    if any(action.startswith(">>") for action in step.actions) and not target.address.is_multicast:
        yield f"it would leave by the port through which it came, and the switch of {node} sends nothing back"
    if target.address.is_multicast and step.flow:
        yield f"no other pod receives multicast of {drop.sender_vnid_text}"
    if target.address.is_multicast:
        yield f"multicast is disabled for {drop.sender_vnid_text}"
    yield from _not_local(drop)
    yield from _isolated(drop)
    if target.project and drop.topology.vnids and target.project not in drop.topology.vnids:
        yield f"{target} is cut off: {target.project} has no VNID"
    if target.project:
        yield f"{target} is not attached to the switch of {node}"
    yield f"no pod on {node} has the address {target.address}"


def _not_local(drop: Drop) -> Iterator[str]:
    """Yield why a packet from a tunnel does not leave the node: it must be for the node's own subnet."""
    target, node, subnet = drop.target, drop.last.node, drop.topology.subnets.get(drop.last.node)
    if drop.last.request.enters == "tunnel" and subnet is not None and target.address not in subnet:
        owner = drop.topology.node_of(target.address)
        mismatch = f"is in the subnet of {owner}" if owner else f"is not in {subnet}"
        yield f"{target} {mismatch}, and {node} does not forward packets from tunnels"


def _isolated(drop: Drop) -> Iterator[str]:
    """Yield why the VNID of the sender keeps the packet from its target."""
    target, source_vnid, docker = drop.target, drop.last.result.vnid, drop.last.result.docker
    target_vnid = drop.topology.vnids.get(target.project)
    if docker is not None and target.address in IPv4Network(docker.subnet):
        target_vnid = docker.vnid
    if target_vnid is not None and target_vnid != source_vnid and 0 not in {target_vnid, source_vnid}:
        yield f"{drop.sender_vnid_text} may not reach {drop.topology.vnid_text(target, target_vnid)}"


def _external_output_drop(drop: Drop) -> Iterator[str]:
    """Yield why the packet does not leave the cluster network: the only flow that drops here is for VXLAN."""
    yield f"{drop.source} may not send VXLAN to the outside: nodes would accept it as a tunnel packet"


_REASONS_BY_TABLE: dict[str, Callable[[Drop], Iterator[str]]] = {
    "classifier": _classifier_drop,
    "arp_responder": _arp_responder_drop,
    "service_lb": _service_lb_drop,
    "l3_forwarding": _l3_forwarding_drop,
    "pod_output": _pod_output_drop,
    "external_output": _external_output_drop,
}
"""Reasons for a drop by the table that drops the packet, the most important one first."""


def explain(source: Host, target: Host, hops: list[Hop], topology: ClusterTopology) -> str:
    """Return the outcome in one sentence: delivered, answered, forwarded, refused, or dropped and why."""
    last = hops[-1]
    outcome = service_outcome(source, hops[0], topology)
    if outcome.sentence:
        return outcome.sentence
    target = outcome.target or target
    outputs = [(hop.node, output) for hop in hops for output in hop.result.outputs]
    for output in last.result.outputs:
        if output.startswith("sender "):
            return f"answered: the switch of {last.node} gives {source} the MAC of {target}, {output.split()[1]}"
    firewall_drop = _explain_firewall_drop(source, target, last, topology)
    if firewall_drop:
        return f"dropped because {firewall_drop}"
    if target.address.is_multicast:
        arrived = [receiver for node, output in outputs if (receiver := _multicast_receiver(output, node, topology))]
    else:
        arrived = [receiver for node, output in outputs if (receiver := _receiver(output, node, target, topology))]
    if arrived:
        condition = _firewall_condition(target, last, topology) or _reply_condition(hops[0], topology)
        return f"delivered: {source} reaches {', '.join(arrived)}{outcome.suffix}{condition}"
    unreached = [output.partition(" ")[2] for output in last.result.outputs if output.startswith("tunnel ")]
    if unreached:
        return f"forwarded to {', '.join(_unreached_host(IPv4Address(address), topology) for address in unreached)}"
    return f"dropped because {_explain_drop(source, target, last, topology)}"


def _receiver(output: str, node: str, target: Host, topology: ClusterTopology) -> str:
    """Return the receiver of the packet at an output; empty for a tunnel, where another switch follows."""
    if output == "docker":
        return f"Docker's bridge on {node}, where a container may have {target.address}"
    if output == "node":
        if _is_own(target, node, topology):
            return f"{node} itself"
        if target.address.is_loopback or target.address.is_unspecified:
            return f"the network stack of {node}, which forwards nothing to {target.address}"
        return f"{topology.node_at(target.address) or 'the outside'}, with the address of {node}"
    return f"{target} on {node}" if output == f"pod {target.address}" else ""


def _is_own(target: Host, node: str, topology: ClusterTopology) -> bool:
    return target.address in {topology.gateway(node), topology.addresses.get(node)}


def _explain_firewall_drop(source: Host, target: Host, last: Hop, topology: ClusterTopology) -> str:
    """Return why the firewall drops or rejects a packet that the switch sends to the node; empty if it does not.

    The agent may have translated host ports before.
    """
    if _is_dropped_by_firewall(target, last, topology):
        dropped = f"the firewall of {last.node} puts the fragments together and drops them"
        return f"{source} may not send VXLAN to the outside: {dropped}"
    if not last.result.rejected_by_firewall:
        return ""
    request, is_own = last.request, _is_own(target, last.node, topology)
    node = last.node if is_own else topology.node_at(target.address)
    host_port = f", unless it is a host port of a pod on {node}" if is_own else ""
    port = f"{request.protocol} port {request.port} of {node}"
    rule = f"the firewall of {last.node} rejects what comes from the pod network to {port}"
    return f"{rule}: podToNodePorts does not name it{host_port}"


def _firewall_condition(target: Host, last: Hop, topology: ClusterTopology) -> str:
    """Return what the firewall accepts of the packets of pods to a node, if that depends on more than the trace has."""
    request = last.request
    is_to_node = _is_own(target, last.node, topology) or bool(topology.node_at(target.address))
    if request.enters == "node" or "node" not in last.result.outputs or not is_to_node:
        return ""
    if request.protocol == "icmp":
        return " by ICMP echo; of connections the firewall decides by the port, so name a protocol and a port"
    if request.fragment == "later":
        return f", if the firewall of {last.node} accepts the port in the first fragment"
    return ""


def _is_dropped_by_firewall(target: Host, last: Hop, topology: ClusterTopology) -> bool:
    """Return True for VXLAN in fragments: the switch sees no ports in fragments, so the firewall drops the packet."""
    request = last.request
    is_vxlan = request.protocol == "udp" and request.port == topology.vxlan_port and request.fragment == "first"
    return is_vxlan and "node" in last.result.outputs and not _is_own(target, last.node, topology)


def _multicast_receiver(output: str, node: str, topology: ClusterTopology) -> str:
    """Return the receiver of one copy of a multicast packet; empty for a tunnel."""
    kind, _, address = output.partition(" ")
    if kind == "pod":
        return f"{topology.find_host(address) or address} on {node}"
    return f"Docker's bridge on {node}" if kind == "docker" else ""


def _reply_condition(first: Hop, topology: ClusterTopology) -> str:
    """Return the condition under which external packets pass the firewall in front of the switch."""
    is_to_service = first.result.service is not None
    is_from_node = first.request.enters == "node"
    if is_to_service or not is_from_node or topology.is_inside(IPv4Address(first.request.source)):
        return ""
    return f", if it is a reply or for a host port: the firewall of {first.node} drops all other external packets"


def _unreached_host(address: IPv4Address, topology: ClusterTopology) -> str:
    host = topology.node_at(address)
    if host:
        return f"{host} ({address}): this host runs no podlane-sdn, so the trace ends here"
    return f"{address}: no host has this address any more"
