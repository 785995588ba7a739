"""Requests and responses of the sdn daemon's CNI socket, which the node agent and `podlane-cni` call. Pure.

HTTP/1.1 on `/run/podlane/sdn.sock` (mode 0600). The paths are the verbs of CNI:

    POST /ADD     AttachRequest  → 200 Attachment        attach: the sandbox has an address, and packets flow
    POST /DEL     DetachRequest  → 200 {}                detach: the sandbox has no port, flow or address
    POST /CHECK   AttachRequest  → 200 {}                the result of ADD is still in place
    GET  /STATUS                 → 200 NetworkStatus     whether ADD can succeed now
    GET  /SANDBOXES?runtime=R    → 200 Sandboxes         the sandboxes that the runtime R attached
    GET  /METRICS                → 200 text              metrics of the daemon, in the text format of Prometheus

Every other response is an `AttachError` with HTTP status 400 (Refused: a retry fails again), 404 (Gone: the sandbox or
its network namespace does not exist) or 503 (NotReady: retry later). ADD and DEL are idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from api.meta.names import dns_label_error
from api.meta.types import Value

NODE_AGENT, CNI = "node-agent", "cni"
"""The runtimes. GET /SANDBOXES lists only the sandboxes of one runtime."""


class AttachRequest(Value, frozen=True, forbid_unknown_fields=True):
    """A request to attach a sandbox.

    `sandbox` is the container ID of the sandbox. `netns` is the path of its network namespace (`/proc/PID/ns/net`).
    `runtime` is the runtime that will detach it: NODE_AGENT or CNI. The bandwidths limit what the pod receives and
    sends, in bits per second; 0 means no limit.
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
    """A request to detach a sandbox, whose network namespace may no longer exist."""

    sandbox: str


class Attachment(Value, frozen=True):
    """The network configuration of an attached sandbox.

    `ip` has the prefix length of the node's subnet (`10.128.0.2/23`). `nameserver` is empty if there is none.
    """

    ip: str
    gateway: str
    mac: str
    mtu: int
    host_interface: str
    nameserver: str = ""


class NetworkStatus(Value, frozen=True):
    """The state of the node's network.

    `subnet` and `gateway` are those of the node (`10.128.0.0/23`, `10.128.0.1`). `nameserver` is empty if there is
    none. `reserved_ports` are ports of the node that host ports must not take (`53/udp`, `30000-32767/tcp`).
    `lost_peers` are nodes that do not answer through the tunnel. `firewall_problem` names tables that may drop packets
    of pods; empty if there are none. Both are None if that is not known (yet).
    """

    ready: bool
    subnet: str = ""
    gateway: str = ""
    mtu: int = 0
    nameserver: str = ""
    reserved_ports: tuple[str, ...] = ()
    lost_peers: tuple[str, ...] | None = None
    firewall_problem: str | None = None


MAX_PEERS_NAMED = 5


def lost_peers_sentence(peers: Sequence[str]) -> str:
    """Return a sentence that names lost peers; empty if there are none."""
    if not peers:
        return ""
    more = len(peers) - MAX_PEERS_NAMED
    names = ", ".join(peers[:MAX_PEERS_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"no answer through the tunnels to {names}: 4789/udp between the nodes may be filtered"


class Sandboxes(Value, frozen=True):
    """IDs of the sandboxes that have a port, even if their network namespace no longer exists."""

    sandboxes: tuple[str, ...] = ()


class AttachError(Value, frozen=True):
    """A failure, in the form of a CNI error.

    `code` is a CNI error code: 3 unknown sandbox, 4 invalid request, 11 try again later, 50 not ready, 100 refused.
    """

    code: int
    msg: str
    details: str = ""


_SANDBOX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_IFNAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")


def check_attach_request(request: AttachRequest) -> Iterator[str]:
    """Yield a message for each invalid value of a request."""
    if not _SANDBOX.fullmatch(request.sandbox):
        yield f"sandbox is {request.sandbox!r}; a letter or digit, then letters, digits, _, . and - are accepted"
    if not request.netns.startswith("/") or "\0" in request.netns:
        yield f"netns is {request.netns!r}; the absolute path of a network namespace is accepted"
    if not _IFNAME.fullmatch(request.ifname) or request.ifname in {".", "..", "lo"}:
        yield f"ifname is {request.ifname!r}; 1 to 15 letters, digits, _, . and - are accepted"
    if dns_label_error(request.namespace):
        yield f"namespace is {request.namespace!r}; {dns_label_error(request.namespace)}"
    if not request.name or not request.name.isprintable():
        yield f"name is {request.name!r}; a name is required"
    if request.runtime not in {NODE_AGENT, CNI}:
        yield f"runtime is {request.runtime!r}; {NODE_AGENT} or {CNI} is accepted"
    for name, bits in (("ingressBandwidth", request.ingress_bandwidth), ("egressBandwidth", request.egress_bandwidth)):
        if bits < 0:
            yield f"{name} is {bits}; 0 or more bits a second are accepted"
