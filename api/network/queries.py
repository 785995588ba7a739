"""NodeQuery (`podlane.io/v1`): an administrator's query to the network of one node, and its result. Pure."""

from __future__ import annotations

import msgspec

from api.meta.types import Object, Value


class TraceRequest(Value, frozen=True):
    """A packet to trace, and where it enters the switch of the node.

    `enters` is pod, docker, tunnel or node. A packet from a pod, or from a container outside of pods (docker), needs
    `sender`, the IP address of that pod or container. A packet from a tunnel needs `tunnel_source`, the address of the
    sending node, and has the VNID `vnid`. A packet from node comes from the node's own network stack.

    `source` is the source address of the packet. `target` is its destination address. `protocol` is icmp, tcp, udp,
    arp, arp-reply or ipv6. An arp packet is a request of `source` for the MAC of `target`. An ipv6 packet has neither
    `source` nor `target`. `port` is the destination port of tcp and udp. `source_mac` and `target_mac` are derived from
    sender and target if they are empty. `vlan` is the VLAN ID of a tagged frame, None for an untagged one. `fragment`
    is first, later, or empty for a packet that is not fragmented.
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
    """One table of the pipeline that the packet passed.

    `flow` is the flow that matched. `owner` is the object to which the flow belongs. `actions` are the actions of the
    flow. Without a flow the packet was dropped. `drop_reason` is the reason of the drop, as in the metric
    `podlane_sdn_dropped_packets`; empty if the packet was not dropped here.
    """

    table: str
    flow: str = msgspec.field(default="", name="row")
    owner: str = ""
    actions: tuple[str, ...] = ()
    drop_reason: str = ""


class DockerNetworkReport(Value, frozen=True):
    """The network of containers outside of pods on a node: their subnet, and the VNID that they share."""

    subnet: str
    vnid: int


class ServicePortReport(Value, frozen=True):
    """A service port as the node serves it.

    `service` is NAMESPACE/NAME. `port` is number and protocol (`80/TCP`). `frontends` are the `ADDRESS:PORT` at which
    clients connect; a node port has `*` as its address. Endpoints are `ADDRESS:PORT`. `internal_endpoints` serve the
    cluster IP. `cluster_endpoints` serve other addresses for clients on pods and nodes. `external_endpoints` serve them
    for clients outside of the cluster. `affinity_seconds` is 0 without session affinity.
    """

    service: str
    port: str
    name: str = ""
    vnid: int = 0
    frontends: tuple[str, ...] = ()
    internal_endpoints: tuple[str, ...] = ()
    cluster_endpoints: tuple[str, ...] = ()
    external_endpoints: tuple[str, ...] = ()
    affinity_seconds: int = 0


class RejectionReport(Value, frozen=True):
    """A part of a service that the node does not program: `subject` names it, `reason` continues the sentence."""

    service: str
    subject: str
    reason: str


class TraceResult(Value, frozen=True):
    """What the switch does with a packet.

    `outputs` are the destinations: `pod ADDRESS`, `tunnel ADDRESS`, `node`, `docker` (Docker's bridge), or `sender MAC`
    (an ARP reply with this MAC, sent back to the sender). `vnid` is the VNID of the sender, as the switch determined
    it. `docker` is None if Docker has no bridge.

    If the packet goes to a service, `service` is its port and `rejected` lists everything of the service that is not
    programmed. `endpoints` are the endpoints that such a client can get. `endpoint` is the one (`ADDRESS:PORT`) that
    this packet gets.

    `rejected_by_firewall`: the packet goes to `node`, whose firewall rejects it: pods do not reach this port of nodes.
    """

    steps: tuple[TraceStep, ...] = ()
    outputs: tuple[str, ...] = ()
    vnid: int = 0
    docker: DockerNetworkReport | None = None
    endpoint: str = ""
    service: ServicePortReport | None = None
    endpoints: tuple[str, ...] = ()
    rejected: tuple[RejectionReport, ...] = ()
    rejected_by_firewall: bool = False


class NetworkReport(Value, frozen=True):
    """The state of a node's network.

    `drift` counts flows that something else changed. `pass_milliseconds` is the duration of the last pass. `error` is
    the reason why the network is not ready. `round_trips` are milliseconds through the tunnel by node, -1 if no
    response came back.
    """

    subnet: str = ""
    pods: int = 0
    free_addresses: int = 0
    flows: int = 0
    drift: int = 0
    pass_milliseconds: float = 0
    error: str = msgspec.field(default="", name="trouble")
    round_trips: dict[str, float] = {}


class CaptureRequest(Value, frozen=True):
    """A capture at the port of one pod: the headers of up to `packets` packets, within `seconds`.

    `pod` is the pod's address.
    """

    pod: str
    packets: int = 100
    seconds: int = 10


class ServicesRequest(Value, frozen=True):
    """A request for the service ports of a node: all, or those of one `namespace` or service."""

    namespace: str = ""
    name: str = ""


class ServicesResult(Value, frozen=True):
    """Service ports of a node, and what it does not program. `omitted_ports` counts ports beyond the size limit."""

    ports: tuple[ServicePortReport, ...] = ()
    rejected: tuple[RejectionReport, ...] = ()
    omitted_ports: int = msgspec.field(default=0, name="more")


class NodeQuerySpec(Value, frozen=True):
    """Exactly one request, to the node `node_name`."""

    node_name: str = ""
    trace: TraceRequest | None = None
    report: bool = False
    capture: CaptureRequest | None = None
    services: ServicesRequest | None = None


class NodeQueryStatus(Value, frozen=True):
    """The result of a query. `answered` becomes true with it.

    `error` is the reason why there is no result. `pcap` is a capture file.
    """

    answered: bool = False
    error: str = ""
    trace: TraceResult | None = None
    report: NetworkReport | None = None
    pcap: bytes = b""
    services: ServicesResult | None = None


class NodeQuery(Object, frozen=True):
    """An administrator's query to the network of one node. The master deletes it after some minutes."""

    API_VERSION = "podlane.io/v1"
    KIND = "NodeQuery"
    PLURAL = "nodequeries"
    NAMESPACED = False

    spec: NodeQuerySpec = NodeQuerySpec()
    status: NodeQueryStatus = NodeQueryStatus()
