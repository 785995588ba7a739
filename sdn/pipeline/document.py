"""Writes docs/pipeline.md from the code: `python -m sdn.pipeline.document`; `--check` fails when the file is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from reconcile.generated_file import write_or_check
from sdn.model.flow import Flow
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.compiler import DOCKER_FLOWS, NODE_FLOWS, PEER_FLOWS, POD_FLOWS, compile_flows
from sdn.pipeline.drops import DROP_DESCRIPTIONS, MISS_REASONS, drop_reason
from sdn.pipeline.multicast import multicast_flows
from sdn.pipeline.pod_connectivity import pod_without_vnid_flows
from sdn.pipeline.service import ServiceFlows
from sdn.pipeline.tables import PORTS, REGISTERS, TABLES, Table
from sdn.topology import DOCKER_OFPORT, AttachedPod, Cluster, DockerNetwork, Node, NodeNetwork, Peer, Pod

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
PEER = Peer("node-2", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))
RED = Pod(16, IPv4Address("10.128.0.2"), 10)
ADMIN = Pod(17, IPv4Address("10.128.0.3"), 0)
GREEN = AttachedPod("sandbox", "green", 18, IPv4Address("10.128.0.4"))
DOCKER = DockerNetwork(IPv4Network("10.128.1.128/25"), DOCKER_OFPORT, 0)
NETWORK = NodeNetwork(
    CLUSTER,
    NODE,
    peers=frozenset({PEER}),
    pods=frozenset({RED, ADMIN}),
    pods_without_vnid=(GREEN,),
    multicast=frozenset({10}),
    docker=DOCKER,
)

WEB = ServicePortInfo(
    key=ServicePortName("red", "web", "", Protocol.TCP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.10"),
    port=80,
    node_port=30080,
    external_ips=(IPv4Address("172.29.0.1"),),
    internal_endpoints=(EndpointInfo(RED.address, 8080, True), EndpointInfo(IPv4Address("10.128.2.2"), 8080)),
    cluster_endpoints=(EndpointInfo(RED.address, 8080, True), EndpointInfo(IPv4Address("10.128.2.2"), 8080)),
)
DATABASE = ServicePortInfo(
    key=ServicePortName("default", "database", "", Protocol.TCP),
    vnid=0,
    cluster_ip=IPv4Address("172.30.0.11"),
    port=5432,
    internal_endpoints=(EndpointInfo(ADMIN.address, 5432, True),),
    cluster_endpoints=(EndpointInfo(ADMIN.address, 5432, True),),
    affinity_timeout_seconds=10800,
)
TIME = ServicePortInfo(
    key=ServicePortName("red", "time", "", Protocol.UDP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.12"),
    port=123,
    node_port=30123,
    external_policy_local=True,
    health_port=30124,
    internal_endpoints=(EndpointInfo(RED.address, 123, True), EndpointInfo(IPv4Address("10.128.2.2"), 123)),
    cluster_endpoints=(EndpointInfo(RED.address, 123, True), EndpointInfo(IPv4Address("10.128.2.2"), 123)),
)
EXPORTER = ServicePortInfo(
    key=ServicePortName("red", "exporter", "", Protocol.TCP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.13"),
    port=9100,
    internal_endpoints=(EndpointInfo(PEER.address, 9100, is_on_node=True),),
    cluster_endpoints=(EndpointInfo(PEER.address, 9100, is_on_node=True),),
)
SERVICE_FLOWS = ServiceFlows(NODE).sync((WEB, TIME, DATABASE, EXPORTER))


def _listed_flows() -> Iterator[tuple[str, frozenset[Flow]]]:
    """Yield owners, with the functions of `compiler.py` that return flows of theirs, and these flows."""
    for node_flows in NODE_FLOWS:
        yield f"node ({node_flows.__name__})", node_flows(CLUSTER, NODE)
    multicast = multicast_flows(NETWORK.multicast, NETWORK.peers, NETWORK.pods, NETWORK.docker)
    yield f"node ({multicast_flows.__name__})", multicast
    for peer_flows in PEER_FLOWS:
        yield f"peer {PEER.name} ({peer_flows.__name__})", peer_flows(PEER)
    for docker_flows in DOCKER_FLOWS:
        yield f"docker ({docker_flows.__name__})", docker_flows(DOCKER)
    for pod_flows in POD_FLOWS:
        for pod in (RED, ADMIN):
            yield f"pod {pod.address} ({pod_flows.__name__})", pod_flows(pod)
    yield f"pod {GREEN.address} ({pod_without_vnid_flows.__name__})", pod_without_vnid_flows(GREEN)
    yield f"services ({ServiceFlows.__name__})", SERVICE_FLOWS.flows


OWNERS = {flow: owner for owner, flows in _listed_flows() for flow in flows}

INTRODUCTION = """\
A packet enters at table CLASSIFIER and moves only forward. A packet that matches no flow of a table is dropped, except
in SESSION_AFFINITY and USED_ENDPOINTS, from which it returns to the table that looked it up. With the flat network
(ovs-subnet) the flows come from the same functions, and every pod has VNID 0. Gaps in the numbers are for later
features: 11 for IPv6 neighbor discovery, 30 and 60 for network policies, 80 and 81 for packets that leave the cluster.
"""

SCENARIO = """\
The flows are those of node-1 (10.245.2.3, subnet 10.128.0.0/23) with one peer, node-2 (10.245.2.4, subnet
10.128.2.0/23), a pod 10.128.0.2 of a project with VNID 10 that has multicast enabled, a pod 10.128.0.3 of the project
`default`, a pod 10.128.0.4 of a project without a VNID, and lbr0 for containers outside of any pod (10.128.1.128/25,
VNID 0). There are four services: `web` of VNID 10 at 172.30.0.10, 172.29.0.1 and node port 30080 with endpoints on
both nodes, `time` of VNID 10 at 172.30.0.12, by UDP, with endpoints on both nodes, `database` of VNID 0 at
172.30.0.11, with session affinity, and `exporter` of VNID 10 at 172.30.0.13, whose endpoint is a pod in the network of
node-2.

Behind each flow are its owner, the function that returns it and, for a flow that drops packets, the reason.
"""

PATHS = """\
* **Pod to pod on one node**: CLASSIFIER (sender checked, VNID recorded) → SERVICE_CONNTRACK (no service) →
  L3_FORWARDING (own subnet) → ENDPOINT_LOOKUP (no endpoint of a service) → SERVICE_UNDNAT → POD_OUTPUT (VNIDs
  compared) → the pod's port.
* **Pod to pod on another node**: CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING (the peer's subnet: the VNID becomes
  the tunnel key) → vxlan0. On the other node: CLASSIFIER (tunnel address and subnet of the peer checked, key recorded)
  → ENDPOINT_LOOKUP → SERVICE_UNDNAT → POD_OUTPUT → the pod's port.
* **Pod to a service**: CLASSIFIER → SERVICE_CONNTRACK (connection tracking, zone 1) → SERVICE_LB (frontend and VNID)
  → DNAT to an endpoint → L3_FORWARDING, and on as from pod to pod. Without session affinity, a single endpoint gets
  its DNAT in SERVICE_LB; with several endpoints, DNAT is applied by a bucket of a group (TCP, SCTP) or in
  ENDPOINT_DNAT (UDP). With session affinity: SERVICE_LB → SESSION_AFFINITY (looked up) → AFFINITY_CHECK, and
  ENDPOINT_DNAT if no endpoint is remembered. The packet keeps the client's address and VNID. Further packets of the
  connection have the endpoint's address when they reach SERVICE_LB. The reply comes to the client's node like any
  packet. ENDPOINT_LOOKUP knows the endpoint's address, SERVICE_UNDNAT its port, and connection tracking restores the
  service's address.
* **Pod to a service with itself as the endpoint** (hairpin): L3_FORWARDING translates the source address (zone 2) →
  POD_OUTPUT → back to the pod. The reply: SERVICE_CONNTRACK (zone 2) → ENDPOINT_LOOKUP → SERVICE_UNDNAT (zone 1) →
  POD_OUTPUT → back to the pod.
* **Pod to a service without endpoints**: SERVICE_LB → tun0. The node rejects the packet; the TCP
  reset or ICMP error comes from the service's address.
* **Pod to an external address**: CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING → EXTERNAL_OUTPUT → tun0. The node
  masquerades the packet. The reply enters at tun0 from an address outside of the cluster: CLASSIFIER →
  ENDPOINT_LOOKUP → SERVICE_UNDNAT → POD_OUTPUT.
* **Pod to the address of a node**: as to an external address. EXTERNAL_OUTPUT changes the source MAC of packets to an
  endpoint of a service and, if projects are isolated, of packets of VNID 0. The firewall of the pod's node lets them
  pass, and otherwise only DNS, ICMP echo and the ports of `podToNodePorts`.
* **Pod to the gateway address** (for example DNS, NTP): CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING → POD_OUTPUT →
  tun0. The reply comes as from node to pod.
* **Node to pod**: tun0, from the gateway address, VNID 0: CLASSIFIER → L3_FORWARDING → ENDPOINT_LOOKUP →
  SERVICE_UNDNAT → POD_OUTPUT. To a pod of another node: L3_FORWARDING → vxlan0.
* **Multicast of a pod** (if enabled): CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING → MULTICAST_TUNNEL (a copy to
  every peer) → POD_OUTPUT (to the pods with the same VNID on this node). On a peer: CLASSIFIER → ENDPOINT_LOOKUP →
  SERVICE_UNDNAT → POD_OUTPUT.
* **Container outside of any pod** (`dockerProject`): lbr0 → vlinuxbr → vovsbr, then like a pod: CLASSIFIER (address in
  Docker's part of the subnet, VNID of its project) → SERVICE_CONNTRACK. To it: POD_OUTPUT (VNIDs compared) → vovsbr.
* **ARP request**: CLASSIFIER → ARP_RESPONDER, which sends the reply.
"""


DROP_REASONS = """\
The metric `podlane_sdn_dropped_packets{reason,owner}` of the sdn daemon counts packets that the switch drops. Packets
that nftables drops are not counted. The daemon reads the counters of the switch at each full pass: every
`resyncSeconds`, and after changes by other programs. The owner is a pod (`pod PROJECT/NAME`), `docker` (containers
outside of any pod), `services` or `node`. The cookie of a flow that drops packets carries the reason in bits 48 to 55,
as its number in `sdn/pipeline/drops.py`. A packet that matches no flow of a table has the reason of the table. The
reason `unknown` belongs to flows with the drop bit in their cookie that are not the daemon's; the next full pass
removes them. A pod that no longer exists is counted as `a pod that is gone`.
"""


def document() -> str:
    """Return the whole document."""
    parts = [
        "# The pipeline of br0",
        "Generated by `make docs` from the modules of `sdn/pipeline/`; change those.",
        INTRODUCTION.rstrip(),
        "## Ports\n\n"
        + _markdown_table(("OpenFlow port", "Use"), *((str(port), sentence) for port, sentence in PORTS.items())),
        "Pods have ports from 16 on. The number is requested from the switch, so that a pod keeps it when Open vSwitch "
        "restarts.",
        "## Registers\n\n" + _markdown_table(("Register", "Content"), *REGISTERS.items()),
        "## Paths of packets\n\n" + PATHS.rstrip(),
        "## Drop reasons\n\n" + DROP_REASONS.rstrip(),
        _drop_reasons(),
        "## Tables\n\n" + SCENARIO.rstrip(),
        *(_table(table) for table in Table),
        "### Groups\n\n```\n" + "\n".join(sorted(map(str, SERVICE_FLOWS.groups))) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(*rows: tuple[str, ...]) -> str:
    """Return a table; the first row has the heads of its columns."""
    heads, *others = rows
    lines = [heads, ("---",) * len(heads), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _drop_reasons() -> str:
    rows = ((reason.label, *description) for reason, description in DROP_DESCRIPTIONS.items())
    return _markdown_table(("Reason", "Owner", "Why the packet is dropped"), *rows)


def _table(table: Table) -> str:
    flows = sorted((flow for flow in compile_flows(NETWORK) | SERVICE_FLOWS.flows if flow.table == table), key=_order)
    lines = [_flow_line(flow) for flow in flows]
    if table in MISS_REASONS:
        lines.append(f"table={table.value},priority=0 (miss) drop  # {MISS_REASONS[table].label}")
    dump = "\n".join(lines)
    return f"### {table.value} {table.name}\n\n{TABLES[table]}\n\n```\n{dump}\n```"


def _flow_line(flow: Flow) -> str:
    """Return the flow with its owner, the function that returns it, and its drop reason."""
    reason = drop_reason(flow.cookie)
    if flow not in OWNERS:
        raise LookupError(f"no function of a tuple in sdn/pipeline/compiler.py returns the flow {flow}")
    return f"{flow}  # {OWNERS[flow]}{'' if reason is None else f': {reason.label}'}"


def _order(flow: Flow) -> tuple[int, str]:
    return -flow.priority, str(flow)


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, document(), sys.argv[1:]))
