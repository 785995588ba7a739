"""Writes docs/pipeline.md from the code: `python -m sdn.pipeline.document`; `--check` fails when the file is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from sdn.model.flow import Flow
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.compiler import compile_flows, flows_of_docker, flows_of_peer, flows_of_pod
from sdn.pipeline.multicast import multicast_flows
from sdn.pipeline.pod_connectivity import external_flows, gateway_flows, l3_forwarding_flows
from sdn.pipeline.service import ServiceFlows, service_conntrack_flows
from sdn.pipeline.tables import PORTS, REGISTERS, TABLES, Table
from sdn.topology import DOCKER_OFPORT, Cluster, DockerNetwork, Node, NodeNetwork, Peer, Pod

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
PEER = Peer("node-2", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))
RED = Pod(16, IPv4Address("10.128.0.2"), 10)
ADMIN = Pod(17, IPv4Address("10.128.0.3"), 0)
DOCKER = DockerNetwork(IPv4Network("10.128.1.128/25"), DOCKER_OFPORT, 0)
NETWORK = NodeNetwork(
    CLUSTER, NODE, frozenset({PEER}), frozenset({RED, ADMIN}), multicast=frozenset({10}), docker=DOCKER
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
SERVICE_FLOWS = ServiceFlows(NODE).sync((WEB, DATABASE))

OWNERS = {
    "the node (`gateway_flows`)": gateway_flows(CLUSTER, NODE),
    "the node (`l3_forwarding_flows`)": l3_forwarding_flows(CLUSTER, NODE),
    "the node (`service_conntrack_flows`)": service_conntrack_flows(CLUSTER, NODE),
    "the node (`external_flows`)": external_flows(CLUSTER, NODE),
    "projects with multicast (`multicast_flows`)": multicast_flows(NETWORK.multicast, NETWORK.peers, NETWORK.pods),
    "peer node-2 (`flows_of_peer`)": flows_of_peer(PEER),
    "Docker's own containers (`flows_of_docker`)": flows_of_docker(DOCKER),
    "pod 10.128.0.2 of VNID 10 (`flows_of_pod`)": flows_of_pod(RED),
    "pod 10.128.0.3 of VNID 0 (`flows_of_pod`)": flows_of_pod(ADMIN),
    "services (`ServiceFlows`)": SERVICE_FLOWS.flows,
}

INTRODUCTION = """\
A packet enters at table CLASSIFIER and moves only forward. A packet that matches no flow of a table is dropped. With
the flat network (ovs-subnet) the flows are the same, and every pod has VNID 0. Gaps in the numbers are for later
features: 11 for IPv6 neighbor discovery, 30 and 60 for network policies, 80 and 81 for packets that leave the cluster.
"""

SCENARIO = """\
The flows are those of node-1 (10.245.2.3, subnet 10.128.0.0/23) with one peer, node-2 (10.245.2.4, subnet
10.128.2.0/23), a pod 10.128.0.2 of a project with VNID 10 that has multicast enabled, a pod 10.128.0.3 of the project
`default`, and lbr0 for containers outside of any pod (10.128.1.128/25, VNID 0). There are two services: `web` of VNID
10 at 172.30.0.10, 172.29.0.1 and node port 30080 with endpoints on both nodes, and `database` of VNID 0 at
172.30.0.11, with session affinity.
"""

PATHS = """\
* **Pod to pod on one node**: CLASSIFIER (sender checked, VNID recorded) → SERVICE_CONNTRACK (no service) →
  L3_FORWARDING (own subnet) → SERVICE_UNDNAT (no reply of a service) → POD_OUTPUT (VNIDs compared) → the pod's port.
* **Pod to pod on another node**: CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING (the peer's subnet: the VNID becomes
  the tunnel key) → vxlan0. On the other node: CLASSIFIER (tunnel address and subnet of the peer checked, key recorded)
  → SERVICE_UNDNAT → POD_OUTPUT → the pod's port.
* **Pod to a service**: CLASSIFIER → SERVICE_CONNTRACK (connection tracking, zone 1) → SERVICE_LB (frontend and VNID) →
  a bucket of the group, which applies DNAT to an endpoint → L3_FORWARDING, and on as from pod to pod. The packet keeps
  the client's address and VNID. Further packets of the connection have the endpoint's address when they reach
  SERVICE_LB. The reply comes to the client's node like any packet, and SERVICE_UNDNAT restores the service's address.
  With session affinity: SERVICE_LB → SESSION_AFFINITY → AFFINITY_CHECK or ENDPOINT_DNAT.
* **Pod to a service with itself as the endpoint** (hairpin): L3_FORWARDING translates the source address (zone 2) →
  POD_OUTPUT → back to the pod. The reply: SERVICE_CONNTRACK (zone 2) → SERVICE_UNDNAT (zone 1) → POD_OUTPUT → back to
  the pod.
* **Pod to a service without endpoints**: SERVICE_LB → tun0. The node rejects the packet with the service's address.
* **Pod to an external address**: CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING → EXTERNAL_OUTPUT → tun0. The node
  masquerades the packet. The reply enters at tun0 from an address outside of the cluster: CLASSIFIER → SERVICE_UNDNAT
  → POD_OUTPUT.
* **Node to pod**: tun0, from the gateway address, VNID 0: CLASSIFIER → L3_FORWARDING → SERVICE_UNDNAT → POD_OUTPUT, or
  the tunnel.
* **Multicast of a pod** (if enabled): CLASSIFIER → SERVICE_CONNTRACK → L3_FORWARDING → MULTICAST_TUNNEL (a copy to
  every peer) → POD_OUTPUT (to the pods with the same VNID on this node). On a peer: CLASSIFIER → SERVICE_UNDNAT →
  POD_OUTPUT.
* **Container outside of any pod** (`dockerProject`): lbr0 → vlinuxbr → vovsbr, then like a pod: CLASSIFIER (address in
  Docker's part of the subnet, VNID of its project) → SERVICE_CONNTRACK. To it: POD_OUTPUT (VNIDs compared) → vovsbr.
* **ARP request**: CLASSIFIER → ARP_RESPONDER, which sends the reply.
"""


def document() -> str:
    """Return the whole document."""
    parts = [
        "# The pipeline of br0",
        "Generated by `make docs` from the modules of `sdn/pipeline/`; change those.",
        INTRODUCTION.rstrip(),
        "## Ports\n\n"
        + _markdown_table(("OpenFlow port", "What it is"), ((str(port), sentence) for port, sentence in PORTS.items())),
        "Pods have ports from 16 on. The number is requested from the switch, so that it survives a restart.",
        "## Registers\n\n" + _markdown_table(("Register", "Content"), REGISTERS.items()),
        "## Paths of packets\n\n" + PATHS.rstrip(),
        "## Tables\n\n" + SCENARIO.rstrip(),
        *(_table(table) for table in Table),
        "### Groups\n\n```\n" + "\n".join(sorted(map(str, SERVICE_FLOWS.groups))) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {left} | {right} |" for left, right in (heads, ("---", "---"), *rows)]
    return "\n".join(lines)


def _table(table: Table) -> str:
    flows = sorted((flow for flow in compile_flows(NETWORK) | SERVICE_FLOWS.flows if flow.table == table), key=_order)
    lines = [f"{number:2} {flow}" for number, flow in enumerate(flows, 1)]
    owners = [f"{number}. {_owner(flow)}" for number, flow in enumerate(flows, 1)]
    miss = f"table={table.value},priority=0 (miss) drop" if not any(not flow.match.fields for flow in flows) else ""
    dump = "\n".join([*lines, f"   {miss}"])
    return f"### {table.value} {table.name}\n\n{TABLES[table]}\n\n```\n{dump}\n```\n\n" + "\n".join(owners)


def _order(flow: Flow) -> tuple[int, str]:
    return -flow.priority, str(flow)


def _owner(flow: Flow) -> str:
    return next(f"{owner}" for owner, flows in OWNERS.items() if flow in flows)


def main() -> int:
    """Write the file, or with `--check` return 1 if it is stale."""
    text = document()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    sys.stderr.write(f"{TARGET}: stale; run `make docs`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
