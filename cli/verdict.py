"""What the switches said of a packet, in one sentence. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address

from cli.called import way
from cli.drops import reason
from cli.walk import End, Hop, Map


def sentence(source: End, target: End, hops: list[Hop], known: Map) -> str:
    """Delivered, answered, sent on, refused, or dropped and why."""
    last = hops[-1]
    call = way(source, hops[0], known)
    if call.end:
        return call.end
    target = call.target or target
    outputs = [(hop.node, output) for hop in hops for output in hop.answer.outputs]
    for output in last.answer.outputs:
        if output.startswith("sender "):
            return f"answered: the switch of {last.node} gives {source} the MAC of {target}, {output.split()[1]}"
    if _is_caught(target, last, known):
        caught = f"the firewall of {last.node} puts the fragments together and drops them"
        return f"dropped because {source} may not send VXLAN to the outside: {caught}"
    if target.address.is_multicast:
        arrived = [words for node, output in outputs if (words := _heard(output, node, known))]
    else:
        arrived = [words for node, output in outputs if (words := _reached(output, node, target, known))]
    if arrived:
        return f"delivered: {source} reaches {', '.join(arrived)}{call.by}{_if_answer(hops[0], known)}"
    lost = [output.partition(" ")[2] for output in last.answer.outputs if output.startswith("tunnel ")]
    if lost:
        return f"sent on: {', '.join(_unasked(IPv4Address(one), known) for one in lost)}"
    return f"dropped because {reason(source, target, last, known)}"


def _reached(output: str, node: str, target: End, known: Map) -> str:
    """Who gets the packet at this output; nobody yet, where it is a tunnel."""
    if output == "docker":
        return f"Docker's bridge on {node}, where a container may have {target.address}"
    if output == "node":
        return f"{node} itself" if _is_own(target, node, known) else f"the outside, with the address of {node}"
    return f"{target} on {node}" if output == f"pod {target.address}" else ""


def _is_own(target: End, node: str, known: Map) -> bool:
    return target.address in {known.gateway(node), known.addresses.get(node)}


def _is_caught(target: End, last: Hop, known: Map) -> bool:
    """VXLAN that the switch lets out because it looks at no ports of fragments; the firewall behind it does."""
    asked = last.asked
    is_vxlan = asked.protocol == "udp" and asked.port == known.vxlan_port and asked.fragment == "first"
    return is_vxlan and "node" in last.answer.outputs and not _is_own(target, last.node, known)


def _heard(output: str, node: str, known: Map) -> str:
    """Who gets one copy of a multicast packet."""
    kind, _, address = output.partition(" ")
    if kind == "pod":
        return f"{known.end(address) or address} on {node}"
    return f"Docker's bridge on {node}" if kind == "docker" else ""


def _if_answer(first: Hop, known: Map) -> str:
    """The switch takes what the firewall before it lets through."""
    is_call = first.answer.service is not None
    is_outside = not is_call and first.asked.enters == "node" and not known.is_inside(IPv4Address(first.asked.source))
    if not is_outside:
        return ""
    return f", if it is an answer or for a host port: else the firewall of {first.node} lets nothing in from outside"


def _unasked(address: IPv4Address, known: Map) -> str:
    host = known.host_at(address)
    return (
        f"to {host} ({address}), which is no node that can be asked" if host else f"to {address}, which is nobody's now"
    )
