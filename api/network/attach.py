"""Requests and responses of the sdn daemon's CNI socket, which the node agent and `podlane-cni` call. Pure.

HTTP/1.1 on `/run/podlane/sdn.sock` (mode 0600). The verbs are those of CNI and stand in the path:

    POST /ADD     AttachRequest  → 200 Attachment        the sandbox has its address, and packets flow
    POST /DEL     DetachRequest  → 200 {}                the sandbox has no port, no flow, no address any more
    POST /CHECK   AttachRequest  → 200 {}                ADD's answer is still true
    GET  /STATUS                 → 200 NetworkStatus     ready for ADD
    GET  /SANDBOXES?runtime=R    → 200 Sandboxes         what is attached on behalf of R

Every other answer is an `AttachError` with an HTTP status of 400 (Refused: asking again is of no use), 404 (Gone: the
sandbox, or its place in the network, is no more) or 503 (NotReady: ask again). ADD and DEL are idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.meta.names import dns_label
from api.meta.types import Value

NODE_AGENT, CNI = "node-agent", "cni"
"""Who asks: each is told, by GET /SANDBOXES, only of what was attached on its own behalf."""


class AttachRequest(Value, frozen=True, forbid_unknown_fields=True):
    """`sandbox` is the container id of the sandbox, `netns` a path of its network namespace (`/proc/PID/ns/net`).

    `runtime` is who knows when the sandbox is gone: NODE_AGENT or CNI.
    The bandwidths limit what the pod receives and sends, in bits a second; 0 is no limit.
    """

    sandbox: str
    netns: str
    namespace: str
    name: str
    runtime: str
    uid: str = ""
    ifname: str = "eth0"
    ingress_bandwidth: int = 0
    egress_bandwidth: int = 0


class DetachRequest(Value, frozen=True, forbid_unknown_fields=True):
    """`sandbox` is what ADD was given; the namespace it lived in may be gone by now."""

    sandbox: str


class Attachment(Value, frozen=True):
    """`ip` carries the prefix length of the node's subnet (`10.128.0.2/23`); `nameserver` is empty if there is none."""

    ip: str
    gateway: str
    mac: str
    mtu: int
    host_interface: str
    nameserver: str = ""


_SANDBOX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_IFNAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")


def problems(request: AttachRequest) -> Iterator[str]:
    """What is wrong with a request, a sentence each."""
    if not _SANDBOX.fullmatch(request.sandbox):
        yield f"sandbox is {request.sandbox!r}; a letter or digit, then letters, digits, _, . and - are accepted"
    if not request.netns.startswith("/") or "\0" in request.netns:
        yield f"netns is {request.netns!r}; the absolute path of a network namespace is accepted"
    if not _IFNAME.fullmatch(request.ifname) or request.ifname in {".", "..", "lo"}:
        yield f"ifname is {request.ifname!r}; 1 to 15 letters, digits, _, . and - are accepted"
    if dns_label(request.namespace):
        yield f"namespace is {request.namespace!r}; {dns_label(request.namespace)}"
    if not request.name or not request.name.isprintable():
        yield f"name is {request.name!r}; a name is required"
    if request.runtime not in {NODE_AGENT, CNI}:
        yield f"runtime is {request.runtime!r}; {NODE_AGENT} or {CNI} is accepted"
    for name, bits in (("ingressBandwidth", request.ingress_bandwidth), ("egressBandwidth", request.egress_bandwidth)):
        if bits < 0:
            yield f"{name} is {bits}; 0 or more bits a second are accepted"


class NetworkStatus(Value, frozen=True):
    """This node's `subnet` and `gateway` (`10.128.0.0/23`, `10.128.0.1`); `nameserver` is empty if there is none."""

    ready: bool
    subnet: str = ""
    gateway: str = ""
    mtu: int = 0
    nameserver: str = ""


class Sandboxes(Value, frozen=True):
    """Ids of the sandboxes that have a port, whether or not their network namespace is still there."""

    sandboxes: tuple[str, ...] = ()


class AttachError(Value, frozen=True):
    """`code` is a CNI error code: 3 unknown sandbox, 4 bad request, 11 try later, 50 not ready, 100 refused."""

    code: int
    msg: str
    details: str = ""
