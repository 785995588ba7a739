"""A packet as a question to the switch, and the switch's words as an answer. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv4Address

from api.queries import TraceAnswer, TraceQuestion, TraceStep
from sdn.flow import mac_text
from sdn.flows import BASE_COOKIE, DOCKER_COOKIE, cookie_of_peer, cookie_of_pod
from sdn.pipeline import TUN0, VXLAN0, Table
from sdn.view import View, mac_of

_STEP = re.compile(r"^ ?(\d+)\. (.*)$")
_ROW = re.compile(r"^(.*), (?:priority (\d+), )?cookie 0x([0-9a-f]+)$|^(.*), priority (\d+)$")
PROTOCOLS = {"icmp": "icmp,icmp_type=8", "tcp": "tcp,tcp_flags=syn", "udp": "udp"}


class Unaskable(Exception):
    """`str(error)` says why there is no such packet on this node."""


def question(asked: TraceQuestion, view: View) -> str:
    """The packet as `ofproto/trace` takes it. Raises Unaskable."""
    source, target = IPv4Address(asked.source), IPv4Address(asked.target)
    sender = view.node.gateway
    if asked.enters == "pod":
        sender = IPv4Address(asked.pod)
        ports = [pod.ofport for pod in view.pods if pod.address == sender]
        if not ports:
            raise Unaskable(f"no pod with a lane has the address {sender} on {view.node.name}")
        enters = f"in_port={ports[0]}"
    elif asked.enters == "tunnel":
        tunnel = f"tun_src={asked.tunnel_source},tun_dst={view.node.address},tun_id={asked.vnid}"
        enters = f"in_port={VXLAN0},{tunnel}"
    else:
        enters = f"in_port={TUN0}"
    macs = f"dl_src={mac_text(mac_of(sender))},dl_dst={mac_text(mac_of(target))}"
    port = f",{asked.protocol}_dst={asked.port}" if asked.protocol != "icmp" else ""
    return f"{enters},{macs},{PROTOCOLS[asked.protocol]},nw_src={source},nw_dst={target},nw_ttl=64{port}"


def answer(text: str, view: View) -> TraceAnswer:
    """Step by step what `ofproto/trace` said, with the names of tables and owners."""
    steps: list[TraceStep] = []
    outputs: list[str] = []
    vnid, tunnel = 0, ""
    of_our_bridge = text.partition("-------------\n")[2].partition("\nFinal flow:")[0].partition("\nbridge(")[0]
    for line in of_our_bridge.splitlines():
        begins = _STEP.match(line)
        if begins is not None:
            steps.append(_step(int(begins[1]), begins[2], view))
            continue
        action = line.strip()
        if action and steps and not action.startswith("->"):
            last = steps[-1]
            steps[-1] = TraceStep(table=last.table, row=last.row, owner=last.owner, actions=(*last.actions, action))
        moved = re.search(r"TUN_ID\[0\.\.31\] is now 0x([0-9a-f]+)", action)
        vnid = int(moved[1], 16) if moved else vnid
        far = re.search(r"set_field:([0-9.]+)->tun_dst", action)
        tunnel = far[1] if far else tunnel
        out = re.fullmatch(r"output:(\d+)", action)
        if out is not None:
            outputs.append(_name(int(out[1]), tunnel, view))
    return TraceAnswer(steps=tuple(steps), outputs=tuple(outputs), vnid=vnid)


def _step(number: int, text: str, view: View) -> TraceStep:
    table = max(table for table in Table if table <= number).name.lower()
    found = _ROW.match(text)
    if found is None:
        return TraceStep(table=table)
    return TraceStep(table=table, row=found[1] or found[4], owner=_owner(int(found[3] or "0", 16), view))


def _owner(cookie: int, view: View) -> str:
    if cookie == BASE_COOKIE:
        return f"node {view.node.name}"
    if cookie == DOCKER_COOKIE:
        return "Docker's bridge"
    for peer in view.peers:
        if cookie_of_peer(peer) == cookie:
            return f"node {peer.name}"
    return next((f"pod {pod.address}" for pod in view.pods if cookie_of_pod(pod) == cookie), "nobody that is known")


def _name(port: int, tunnel: str, view: View) -> str:
    if port == VXLAN0:
        return f"tunnel {tunnel}"
    if port == TUN0:
        return "node"
    if view.docker is not None and port == view.docker.ofport:
        return "Docker's bridge"
    return next((f"pod {pod.address}" for pod in view.pods if pod.ofport == port), f"port {port}")
