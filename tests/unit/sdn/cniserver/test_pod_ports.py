"""Addresses and ports of pods, recovered from the switch alone after a restart."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.network.attach import CNI, NODE_AGENT
from sdn.cniserver.pod_ports import (
    InterfaceConfig,
    attached_pods,
    bridge_with_ports,
    host_veth_name,
    kernel_rate_limit,
    mismatch,
    plan_attach,
    pods_without_device,
    ports_of_pods,
    sandboxes_of_runtime,
)
from sdn.model.host import Bridge, Port
from sdn.topology import FIRST_POD_OFPORT, AttachedPod
from tests.unit.sdn.examples import NODE, SMALL


def interface_config(sandbox: str, runtime: str = NODE_AGENT) -> InterfaceConfig:
    return InterfaceConfig(
        sandbox=sandbox,
        namespace="red",
        name=f"pod-{sandbox}",
        uid="uid",
        netns="/proc/1/ns/net",
        netns_id="0:1",
        ifname="eth0",
        runtime=runtime,
    )


def carried_out(bridge: Bridge, coming: Bridge) -> Bridge:
    """Return the bridge that the switch reports after a write."""
    ports = {port.name: port for port in bridge.ports}
    ports |= {port.name: replace(port, ofport=port.ofport_request) for port in coming.ports}
    marks = {**dict(bridge.external_ids), **dict(coming.external_ids)}
    return replace(bridge, ports=tuple(ports.values()), external_ids=tuple(sorted(marks.items())))


def test_freed_address_is_reused_only_after_the_range_wrapped_around() -> None:
    bridge, given_out = Bridge("br0"), []
    for number in range(12):
        plan = plan_attach(bridge, SMALL, [interface_config(str(number))])
        bridge = carried_out(bridge, bridge_with_ports(bridge, plan.to_attach))
        given_out.append(str(plan.to_attach[0].address).rpartition(".")[2])
        bridge = replace(bridge, ports=())
    assert given_out == ["2", "3", "4", "5", "6", "2", "3", "4", "5", "6", "2", "3"]


def test_full_subnet_rejects_only_new_pods() -> None:
    plan = plan_attach(Bridge("br0"), SMALL, [interface_config(str(number)) for number in range(7)])
    assert [arrival.config.sandbox for arrival in plan.to_attach] == ["0", "1", "2", "3", "4"]
    assert set(plan.no_address) == {"5", "6"}


def test_pod_with_an_address_of_another_subnet_is_stranded() -> None:
    bridge = Bridge("br0")
    bridge = carried_out(
        bridge, bridge_with_ports(bridge, plan_attach(bridge, NODE, [interface_config("a")]).to_attach)
    )
    plan = plan_attach(
        bridge, replace(NODE, subnet=IPv4Network("10.129.0.0/23")), [interface_config("a"), interface_config("b")]
    )
    assert [arrival.config.sandbox for arrival in plan.to_attach] == ["b"]
    assert plan.wrong_subnet == {"a": "its address 10.128.0.2 is not of this node's subnet 10.129.0.0/23"}


def test_attached_sandbox_is_not_attached_again() -> None:
    bridge = Bridge("br0")
    bridge = carried_out(
        bridge, bridge_with_ports(bridge, plan_attach(bridge, NODE, [interface_config("a")]).to_attach)
    )
    assert not plan_attach(bridge, NODE, [interface_config("a")]).to_attach
    assert attached_pods(bridge) == (AttachedPod("a", "red", FIRST_POD_OFPORT, IPv4Address("10.128.0.2")),)
    assert [port.name for port in ports_of_pods(bridge, {"a", "b"})] == [host_veth_name("a")]


def test_port_without_a_device_is_lost_and_gets_no_flow() -> None:
    bridge = carried_out(
        Bridge("br0"),
        bridge_with_ports(Bridge("br0"), plan_attach(Bridge("br0"), NODE, [interface_config("a")]).to_attach),
    )
    broken = replace(bridge, ports=tuple(replace(port, ofport=-1) for port in bridge.ports))
    assert pods_without_device(broken) == {"a"}
    assert not attached_pods(broken)
    assert not pods_without_device(bridge)


def test_runtime_lists_only_its_own_sandboxes() -> None:
    bridge = replace(Bridge("br0"), ports=(Port("tun0", type="internal", ofport=2),))
    configs = [interface_config("a"), interface_config("b", CNI), interface_config("c")]
    bridge = carried_out(bridge, bridge_with_ports(bridge, plan_attach(bridge, NODE, configs).to_attach))
    bridge = replace(
        bridge, ports=tuple(replace(p, ofport=-1) if p.name == host_veth_name("c") else p for p in bridge.ports)
    )
    assert sandboxes_of_runtime(bridge, NODE_AGENT) == ("a", "c")
    assert sandboxes_of_runtime(bridge, CNI) == ("b",)
    assert sandboxes_of_runtime(None, NODE_AGENT) == ()


def test_host_veth_names_fit_and_are_unique() -> None:
    names = {host_veth_name(f"{number:064x}") for number in range(1000)}
    assert len(names) == 1000
    assert all(len(name) == 15 for name in names)


def test_sandbox_attached_differently_is_rejected_with_the_difference() -> None:
    wanted = interface_config("a")
    (port,) = bridge_with_ports(Bridge("br0"), plan_attach(Bridge("br0"), NODE, [wanted]).to_attach).ports
    assert mismatch(port, wanted) == ""
    assert mismatch(port, replace(wanted, namespace="blue")) == "its project is red, requested is blue"
    assert mismatch(port, replace(wanted, netns_id="0:2")) == "its network namespace is 0:1, requested is 0:2"
    assert mismatch(port, replace(wanted, ifname="eth1")) == "its device is eth0, requested is eth1"


@pytest.mark.parametrize(
    ("requested", "limit"), [(1_001, 1_000), (10**9, 10**9), (10**11, 34_359_738_360), (10**15, 34_359_738_360)]
)
def test_rate_limit_is_capped_at_the_kernels_range(requested: int, limit: int) -> None:
    assert kernel_rate_limit(requested) == limit
