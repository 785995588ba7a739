"""The firewall's table for services as text: service ports go in, nft commands come out, to be reviewed like code."""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.nftables import services_table, table_update
from tests.unit.sdn.examples import NODE, PROXY_CONFIG

TEXTS = Path(__file__).parent / "services"

NODES = NODE.address, IPv4Address("10.245.2.4")
HERE, THERE = (
    EndpointInfo(IPv4Address("10.128.0.2"), 8080, is_local=True),
    EndpointInfo(IPv4Address("10.128.2.2"), 8080),
)
WEB = ServicePortInfo(
    key=ServicePortName("red", "web", "http", Protocol.TCP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.10"),
    port=80,
    node_port=30080,
    external_ips=(IPv4Address("198.51.100.7"),),
    internal_endpoints=(HERE, THERE),
    cluster_endpoints=(HERE, THERE),
    external_endpoints=(HERE, THERE),
)
STICKY = replace(
    WEB,
    key=ServicePortName("red", "sticky", "", Protocol.UDP),
    cluster_ip=IPv4Address("172.30.0.11"),
    node_port=30081,
    external_ips=(),
    external_endpoints=(HERE,),
    affinity_timeout_seconds=10800,
    external_policy_local=True,
)
EMPTY = ServicePortInfo(
    key=ServicePortName("red", "empty", "", Protocol.TCP),
    vnid=10,
    cluster_ip=IPv4Address("172.30.0.12"),
    port=80,
    node_port=30082,
)
SERVED = (WEB, STICKY, EMPTY)

OUTPUTS = {
    "nftables.nft": services_table(PROXY_CONFIG, SERVED),
    "userspace.nft": services_table(PROXY_CONFIG, SERVED, proxy_port=34567),
    "one_endpoint_goes.nft": table_update(
        PROXY_CONFIG,
        ServicePortChange(
            (WEB, STICKY),
            (
                replace(WEB, internal_endpoints=(THERE,), cluster_endpoints=(THERE,), external_endpoints=(THERE,)),
                replace(STICKY, internal_endpoints=(THERE,), cluster_endpoints=(THERE,), external_endpoints=()),
            ),
        ),
    ),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_services_table_renders_the_golden_text(output: str) -> None:
    path = TEXTS / output
    if os.environ.get("GOLDEN") == "write":
        path.write_text(OUTPUTS[output])
    assert path.read_text() == OUTPUTS[output], "if this is meant, run `make golden` and read the diff"
