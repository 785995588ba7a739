"""Scenarios as text: API objects and attached pods go in; flows, links and firewall come out, to be reviewed like code.

A difference means that the output of the compiler has changed. If that was intended, `make golden` rewrites the files;
review the diff line by line.
"""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from sdn.config import NodeIdentity
from sdn.host.firewall import ingress_guard, masquerade_table
from sdn.host.links import desired_bridge, desired_docker_bridge, desired_gateway, docker_options
from sdn.model.flow import Flow
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.drops import drop_reason
from sdn.pipeline.tables import Table
from sdn.topology import AttachedPod, NodeNetwork, NodeNetworkConfig, Snapshot, network_config, node_network

SCENARIOS = Path(__file__).parent / "scenarios"


def network_of(document: dict[str, Any]) -> NodeNetwork:
    """Return the desired network of the node that `input.yaml` describes."""
    snapshot = Snapshot(
        msgspec.convert(document["clusterNetwork"], ClusterNetwork),
        tuple(msgspec.convert(document["hostSubnets"], list[HostSubnet])),
        tuple(msgspec.convert(document.get("netNamespaces", []), list[NetNamespace])),
    )
    attached = [
        AttachedPod(pod["sandbox"], pod["namespace"], pod["ofport"], IPv4Address(pod["ip"]))
        for pod in document.get("attached", [])
    ]
    node = document["node"]
    identity = NodeIdentity(node["name"], IPv4Address(node["ip"]), "netdev", document.get("dockerProject", ""))
    config = network_config(snapshot, identity, 1450)
    assert isinstance(config, NodeNetworkConfig), config
    return node_network(config, attached)


def _table(number: int) -> str:
    return max(table for table in Table if table <= number).name.lower()


def flows_text(network: NodeNetwork) -> str:
    flows = sorted(compile_flows(network), key=lambda flow: (flow.table, -flow.priority, str(flow)))
    return "".join(map(_flow_line, flows))


def _flow_line(flow: Flow) -> str:
    """Return the flow with the name of its table and, if it drops packets, the reason."""
    text = str(flow).replace(f"table={flow.table},", f"table={_table(flow.table)},")
    reason = drop_reason(flow.cookie)
    return f"{text}\n" if reason is None else f"{text} ({reason.label})\n"


def links_text(network: NodeNetwork) -> str:
    bridge = desired_bridge(network.cluster, network.node, "netdev")
    gateway = desired_gateway(network.cluster, network.node)
    lines = [f"bridge {bridge.name} datapath_type={bridge.datapath_type} fail_mode={bridge.fail_mode}"]
    for port in bridge.ports:
        words = [
            f"ofport={port.ofport_request}",
            f"type={port.type}",
            *(f"{key}={value}" for key, value in port.options),
        ]
        words += [f"mac={port.mac}"] * bool(port.mac) + [f"mtu={port.mtu_request}"] * bool(port.mtu_request)
        lines.append(f"  port {port.name} {' '.join(words)}")
    lines.append(f"address {gateway.address} dev {gateway.device}")
    lines += [f"route {network} dev {gateway.device}" for network in sorted(gateway.routes)]
    lines += [f"sysctl {name}={value}" for name, value in (*gateway.sysctls, *gateway.guarded_sysctls)]
    docker = desired_docker_bridge(network.cluster, network.node, "netdev")
    if docker is not None:
        lines.append(f"lbr0 address={docker.address} mtu={docker.mtu}")
        lines.append(f"dockerd {docker_options(network.cluster, network.node).strip()}")
    lines += [f"no VNID: {pod.namespace} {pod.sandbox} {pod.address}" for pod in network.pods_without_vnid]
    return "\n".join(lines) + "\n"


def nat_text(network: NodeNetwork) -> str:
    return masquerade_table(network.cluster, network.node) + ingress_guard(added=frozenset({"eth0"}))


OUTPUTS = {"flows.txt": flows_text, "links.txt": links_text, "nat.nft": nat_text}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("scenario", sorted(entry.name for entry in SCENARIOS.iterdir()))
def test_scenario_renders_the_golden_text(scenario: str, output: str) -> None:
    folder = SCENARIOS / scenario
    text = OUTPUTS[output](network_of(yaml.safe_load((folder / "input.yaml").read_text())))
    if os.environ.get("GOLDEN") == "write":
        (folder / output).write_text(text)
    assert (folder / output).read_text() == text, f"{scenario}: if this is meant, run `make golden` and read the diff"


@pytest.mark.parametrize("scenario", sorted(entry.name for entry in SCENARIOS.iterdir()))
def test_every_drop_flow_of_a_scenario_has_a_reason(scenario: str) -> None:
    flows = compile_flows(network_of(yaml.safe_load((SCENARIOS / scenario / "input.yaml").read_text())))
    dropping = [flow for flow in flows if not flow.actions]
    assert dropping
    assert [str(flow) for flow in dropping if drop_reason(flow.cookie) is None] == []
    assert {drop_reason(flow.cookie) for flow in flows if flow.actions} == {None}
