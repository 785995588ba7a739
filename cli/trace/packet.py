"""Arguments of `podlane network trace`, and the request that follows from them. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from ipaddress import IPv4Address

from api.network.queries import TraceRequest
from api.validation import network
from cli import object_names
from cli.command import UsageError
from cli.trace.topology import ClusterTopology, Host

_FLAGS = {
    "source": "--source-address",
    "port": "--port",
    "vnid": "--vnid",
    "vlan": "--vlan",
    "sourceMac": "--source-mac",
    "targetMac": "--target-mac",
    "fragment": "--fragment",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the packet."""
    endpoint = "PROJECT/POD, a node, or an address (also of a container outside of any pod)"
    parser.add_argument("source", metavar="SRC", type=object_names.endpoint, help=endpoint)
    parser.add_argument("target", metavar="DST", type=object_names.endpoint, help=f"{endpoint}, or PROJECT/SERVICE")
    kinds = parser.add_argument_group("the packet")
    add = kinds.add_argument
    protocols = "protocol (icmp; for a service, that of its port); arp is an ARP request of SRC for DST"
    add("--proto", choices=network.TRACE_PROTOCOLS, default="", help=protocols)
    add("--port", type=int, default=0, metavar="N", help="target port of tcp and udp (the first one of a service)")
    add(
        "--fragment",
        choices=network.FRAGMENTS,
        default="",
        help="trace a fragment; later fragments have no port",
    )
    add("--vlan", type=int, metavar="N", help="the VLAN tag of the frame")
    add("--source-address", metavar="ADDRESS", default="", help="the source address of the packet, if not that of SRC")
    add("--source-mac", metavar="MAC", default="", help="the source MAC of the frame, if not that of SRC")
    add("--target-mac", metavar="MAC", default="", help="the destination MAC of the frame")
    entrances = parser.add_argument_group("where the packet enters, if not from SRC")
    either = entrances.add_mutually_exclusive_group()
    either.add_argument("--from-outside", action="store_true", help="from outside, through the node's network stack")
    either.add_argument(
        "--from-tunnel",
        metavar="HOST",
        type=object_names.node_or_address,
        help="through a VXLAN tunnel from a node or address",
    )
    entrances.add_argument("--vnid", type=int, metavar="N", help="the VNID in the VXLAN packet")
    entrances.add_argument(
        "--on", metavar="NODE", type=object_names.node, help="the node at which the packet arrives (that of DST)"
    )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a trace, for commands that trace a packet themselves."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def build_request(
    arguments: argparse.Namespace, source: Host, target: Host, topology: ClusterTopology
) -> tuple[str, TraceRequest]:
    """Return the node at which the trace begins, and the request. Raises UsageError."""
    is_external = arguments.from_outside or bool(arguments.from_tunnel)
    node, enters = _external_entry(arguments, target, topology) if is_external else _sender_entry(arguments, source)
    protocol, port = _protocol_and_port(arguments, target, topology)
    request = TraceRequest(
        enters=enters,
        source=arguments.source_address or str(source.address),
        target=str(target.address),
        sender=str(source.address) if enters in {"pod", "docker"} else "",
        tunnel_source=_tunnel_source(arguments.from_tunnel, topology) if enters == "tunnel" else "",
        vnid=arguments.vnid or 0,
        protocol=protocol,
        port=port,
        source_mac=arguments.source_mac,
        target_mac=arguments.target_mac,
        vlan=arguments.vlan,
        fragment=arguments.fragment,
    )
    problems = [
        problem._replace(path=_FLAGS.get(problem.path, problem.path)) for problem in network.check_trace(request)
    ]
    if problems:
        raise UsageError("; ".join(map(str, problems)))
    if _depends_on_port(request, topology):
        raise UsageError(f"--port is required with --proto {protocol}: the firewall of {node} decides by the port")
    return node, request


def _depends_on_port(request: TraceRequest, topology: ClusterTopology) -> bool:
    """Return whether a packet of a pod to a node lacks the port by which firewalls decide."""
    lacks_port = request.protocol in network.PORT_PROTOCOLS and not request.port and request.fragment != "later"
    target = IPv4Address(request.target)
    is_to_node = bool(topology.node_at(target)) or any(topology.gateway(host) == target for host in topology.subnets)
    return request.enters != "node" and lacks_port and is_to_node


def _protocol_and_port(arguments: argparse.Namespace, target: Host, topology: ClusterTopology) -> tuple[str, int]:
    """Return protocol and port. For a service, the default is its first port."""
    protocol: str = arguments.proto
    frontend = topology.frontend(target.address, arguments.port, protocol)
    if frontend is not None:
        return frontend.protocol, frontend.port
    is_service = topology.frontend(target.address) is not None
    return protocol or ("tcp" if is_service else "icmp"), arguments.port


def _sender_entry(arguments: argparse.Namespace, source: Host) -> tuple[str, str]:
    if arguments.vnid is not None:
        raise UsageError("--vnid requires --from-tunnel: a packet that SRC sends has the VNID of its project")
    if arguments.on:
        raise UsageError(
            "--on requires --from-outside or --from-tunnel: a packet that SRC sends starts on the node of SRC"
        )
    if not source.enters:
        raise UsageError(f"{source} is in no node's subnet: add --from-outside or --from-tunnel")
    return source.node, source.enters


def _external_entry(arguments: argparse.Namespace, target: Host, topology: ClusterTopology) -> tuple[str, str]:
    if arguments.source_address:
        raise UsageError(
            "--source-address requires a packet that SRC sends; otherwise SRC itself is the source address"
        )
    if arguments.from_tunnel and arguments.vnid is None:
        raise UsageError("--from-tunnel needs --vnid: the VNID in the VXLAN packet")
    if arguments.from_outside and arguments.vnid is not None:
        raise UsageError("--vnid requires --from-tunnel: a packet from outside has VNID 0")
    node = arguments.on or target.node
    if not node:
        raise UsageError(f"{target} is on no node: add the node that the packet reaches, --on NODE")
    nodes = topology.nodes & topology.subnets.keys()
    if node not in nodes:
        raise UsageError(f"{node} is not a node with a subnet; nodes with a subnet are {', '.join(sorted(nodes))}")
    return node, "tunnel" if arguments.from_tunnel else "node"


def _tunnel_source(text: str, topology: ClusterTopology) -> str:
    try:
        return str(topology.addresses[text] if text in topology.addresses else IPv4Address(text))
    except ValueError:
        raise UsageError(f"--from-tunnel {text}: is neither a node nor an IPv4 address") from None
