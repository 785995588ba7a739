"""NodeQuery (`podlane.io/v1`): an administrator's query to the network of one node, and its result. Pure."""

from __future__ import annotations

from api.meta.types import Object, Value


class TraceQuestion(Value, frozen=True):
    """A packet, and where it enters the switch of a node.

    `enters` is pod or docker (from the pod, or the container outside of any pod, with the address `sender`), tunnel
    (from the address `tunnel_source`, with `vnid`) or node (from the node's own network stack). `protocol` is icmp,
    tcp, udp, arp (who has `target`? asks `source`), arp-reply or ipv6, whose packets carry neither `source` nor
    `target`; `port` is the target port of tcp and udp. MACs that are not given follow from sender and target.
    `vlan` is the number in a tag; None is a frame without one. `fragment` is first, later, or empty for a whole packet.
    """

    enters: str
    source: str
    target: str
    sender: str = ""
    tunnel_source: str = ""
    vnid: int = 0
    protocol: str = "icmp"
    port: int = 0
    source_mac: str = ""
    target_mac: str = ""
    vlan: int | None = None
    fragment: str = ""


class TraceStep(Value, frozen=True):
    """One table: the row that decided, whose it is and what it does. No row at all drops the packet."""

    table: str
    row: str = ""
    owner: str = ""
    actions: tuple[str, ...] = ()


class DockerPart(Value, frozen=True):
    """The containers outside of any pod of a node: they have addresses of `subnet`, and all the same VNID."""

    subnet: str
    vnid: int


class PortReport(Value, frozen=True):
    """A port of a service that a node serves, `port` as people write it (`80/TCP`).

    `fronts` are `ADDRESS:PORT` where callers call, a node port alone with `*`. Endpoints are `ADDRESS:PORT`: `inside`
    for the cluster IP, `everywhere` for pods and the node at other addresses, `outside` for callers from outside.
    `affinity_seconds` is 0 without session affinity.
    """

    service: str
    port: str
    name: str = ""
    vnid: int = 0
    fronts: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    everywhere: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    affinity_seconds: int = 0


class LeftOutReport(Value, frozen=True):
    """Something of a service that the node does not program: `what` names it, `why` goes on as a sentence."""

    service: str
    what: str
    why: str


class TraceAnswer(Value, frozen=True):
    """What the switch would do.

    `outputs` name where the packet comes out: `pod ADDRESS`, `tunnel ADDRESS`, `node`, `docker` (Docker's bridge) and
    `sender MAC` (an ARP answer that gives this MAC, back to who asked). `vnid` is the sender's, as the switch noted it;
    `docker` is None where Docker has no bridge.

    `service` is what it calls on this node, with all that is left out of that service, `endpoints` what such a caller
    gets there, `endpoint` the one (`ADDRESS:PORT`) to which this packet goes.
    """

    steps: tuple[TraceStep, ...] = ()
    outputs: tuple[str, ...] = ()
    vnid: int = 0
    docker: DockerPart | None = None
    endpoint: str = ""
    service: PortReport | None = None
    endpoints: tuple[str, ...] = ()
    left_out: tuple[LeftOutReport, ...] = ()


class NetworkReport(Value, frozen=True):
    """How a node's network is; `round_trips` are milliseconds through the tunnel, by node, -1 where none came back."""

    subnet: str = ""
    pods: int = 0
    free_addresses: int = 0
    flows: int = 0
    drift: int = 0
    pass_milliseconds: float = 0
    trouble: str = ""
    round_trips: dict[str, float] = {}


class CaptureQuestion(Value, frozen=True):
    """What goes over the port of the pod with this address: the heads of `packets` packets within `seconds`."""

    pod: str
    packets: int = 100
    seconds: int = 10


class ServicesQuestion(Value, frozen=True):
    """Which services the node serves, and what it leaves out: of one project, or of one service of it, or of all."""

    namespace: str = ""
    name: str = ""


class ServicesAnswer(Value, frozen=True):
    """`more` counts the ports that were too many for one answer."""

    ports: tuple[PortReport, ...] = ()
    left_out: tuple[LeftOutReport, ...] = ()
    more: int = 0


class NodeQuerySpec(Value, frozen=True):
    """Exactly one question, to one node."""

    node_name: str = ""
    trace: TraceQuestion | None = None
    report: bool = False
    capture: CaptureQuestion | None = None
    services: ServicesQuestion | None = None


class NodeQueryStatus(Value, frozen=True):
    """The answer; `error` says why there is none; `pcap` is a file of packets."""

    answered: bool = False
    error: str = ""
    trace: TraceAnswer | None = None
    report: NetworkReport | None = None
    pcap: bytes = b""
    services: ServicesAnswer | None = None


class NodeQuery(Object, frozen=True):
    """A question of an administrator to the network of one node; the master drops it after some minutes."""

    API_VERSION = "podlane.io/v1"
    KIND = "NodeQuery"

    spec: NodeQuerySpec = NodeQuerySpec()
    status: NodeQueryStatus = NodeQueryStatus()
