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
from sdn.topology import VOVSBR_MULTITENANT, Cluster, DockerNetwork, Node, NodeNetwork, Peer, Pod

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
PEER = Peer("node-2", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))
RED = Pod(16, IPv4Address("10.128.0.2"), 10)
ADMIN = Pod(17, IPv4Address("10.128.0.3"), 0)
DOCKER = DockerNetwork(IPv4Network("10.128.1.128/25"), VOVSBR_MULTITENANT, 0)
VIEW = NodeNetwork(CLUSTER, NODE, frozenset({PEER}), frozenset({RED, ADMIN}), multicast=frozenset({10}), docker=DOCKER)

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
SERVED = ServiceFlows(NODE).sync((WEB, DATABASE))

OWNERS = {
    "the node (`gateway_flows`)": gateway_flows(CLUSTER, NODE),
    "the node (`route_flows`)": l3_forwarding_flows(CLUSTER, NODE),
    "the node (`service_flows`)": service_conntrack_flows(CLUSTER, NODE),
    "the node (`outside_flows`)": external_flows(CLUSTER, NODE),
    "projects with multicast (`multicast_flows`)": multicast_flows(VIEW.multicast, VIEW.peers, VIEW.pods),
    "peer node-2 (`flows_of_peer`)": flows_of_peer(PEER),
    "Docker's own containers (`flows_of_docker`)": flows_of_docker(DOCKER),
    "pod 10.128.0.2 of VNID 10 (`flows_of_pod`)": flows_of_pod(RED),
    "pod 10.128.0.3 of VNID 0 (`flows_of_pod`)": flows_of_pod(ADMIN),
    "services (`sdn.pipeline.service`)": SERVED.flows,
}

INTRODUCTION = """\
A packet enters at table SOURCE and moves only forward. What no row of a table matches is dropped. With the flat network
(ovs-subnet) the flows are the same and every pod has VNID 0.
"""

SCENARIO = """\
The rows are those of node-1 (10.245.2.3, subnet 10.128.0.0/23) with one peer, node-2 (10.245.2.4, subnet
10.128.2.0/23), a pod 10.128.0.2 of a project with VNID 10 that has multicast switched on, a pod 10.128.0.3 of the
project `default`, and lbr0 for containers outside of any pod (10.128.1.128/25, VNID 0). Two services: `web` of VNID
10 at 172.30.0.10, 172.29.0.1 and node port 30080 with backends on both nodes, and `database` of VNID 0 at
172.30.0.11, whose callers keep their backend.
"""

WALKS = """\
* **Pod to pod, one node**: SOURCE (pinned, VNID noted) → CALLED (no service) → ROUTE (own subnet) → ANSWER (no answer
  of a service) → DELIVER (VNID compared) → the pod's port.
* **Pod to pod, two nodes**: SOURCE → CALLED → ROUTE (the peer's subnet: VNID into the tunnel key) → vxlan0; on the
  other node SOURCE (tunnel address and subnet of the peer, key noted) → ANSWER → DELIVER → the pod's port.
* **Pod to a service**: SOURCE → CALLED (connection tracking, zone 1) → SERVICE (front and VNID) → a bucket of the
  group: the packet gets a backend's address → ROUTE, and on as from pod to pod; it keeps the caller's address and
  VNID. Further packets of the connection have the backend's address when they come to SERVICE. The answer comes like
  any packet to the caller's node; ANSWER gives it the service's address. With session affinity SERVICE → AFFINITY →
  CHOSEN or BACKEND.
* **Pod to a service that is itself**: ROUTE gives it another sender's address (zone 2) → DELIVER → back. The answer:
  CALLED (zone 2) → ANSWER (zone 1) → DELIVER → back.
* **Pod to a service without backends**: SERVICE → tun0; the node refuses, in the name of the service.
* **Pod to the outside**: SOURCE → CALLED → ROUTE → OUTSIDE → tun0; the node masquerades. The answer enters at tun0
  from an address outside the cluster: SOURCE → ANSWER → DELIVER.
* **Node to pod**: tun0 from the gateway address, VNID 0: SOURCE → ROUTE → ANSWER → DELIVER, or the tunnel.
* **Pod to many** (multicast switched on): SOURCE → CALLED → ROUTE → FLOOD (a copy to every peer) → DELIVER (to the
  pods of the same VNID on this node); on a peer SOURCE → ANSWER → DELIVER.
* **Container outside of any pod** (`dockerProject`): lbr0 → vlinuxbr → vovsbr, then like a pod: SOURCE (pinned to
  Docker's part of the subnet, VNID of its project) → CALLED. To it: DELIVER (VNID compared) → vovsbr.
* **Who has this address?**: SOURCE → ARP, answered on the spot.
"""


def document() -> str:
    """The whole text."""
    parts = [
        "# The pipeline of br0",
        "Generated by `make docs` from the modules of `sdn/pipeline/`; change those.",
        INTRODUCTION.rstrip(),
        "## Ports\n\n" + _rows(("OpenFlow port", "What it is"), ((str(port), what) for port, what in PORTS.items())),
        "Pods have ports from 16 upward; the number is asked of the switch, so that it survives the switch's restart.",
        "## Registers\n\n" + _rows(("Register", "What it carries"), REGISTERS.items()),
        "## Walks\n\n" + WALKS.rstrip(),
        "## Tables\n\n" + SCENARIO.rstrip(),
        *(_table(table) for table in Table),
        "### Groups\n\n```\n" + "\n".join(sorted(map(str, SERVED.groups))) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _rows(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {left} | {right} |" for left, right in (heads, ("---", "---"), *rows)]
    return "\n".join(lines)


def _table(table: Table) -> str:
    flows = sorted((flow for flow in compile_flows(VIEW) | SERVED.flows if flow.table == table), key=_order)
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
    """Write the file, or with `--check` say whether it is up to date."""
    text = document()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    sys.stderr.write(f"{TARGET}: is not what the code says; run `make docs`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
