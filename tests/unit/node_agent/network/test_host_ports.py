"""Host ports: their table, and which ones pods do not get."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address

import pytest
from msgspec.structs import replace

from api.core.pod import Pod, PodStatus
from api.network.attach import NetworkStatus
from node_agent.network import host_ports
from node_agent.network.host_ports import (
    NO_HOST_PORTS,
    HostPortManager,
    Listener,
    NodePorts,
    PortRange,
    compile_host_ports,
    parse_listeners,
    read_node_ports,
)
from node_agent.network.plugin import NoNetwork
from reconcile.errors import NotReady
from tests.unit.node_agent.examples import make_pod, with_status

ADDRESS = IPv4Address("192.0.2.1")
NODE = NodePorts(
    addresses=frozenset({ADDRESS, IPv4Address("10.128.0.1")}),
    reserved=frozenset(map(PortRange.parse, ("53/udp", "53/tcp", "4789/udp", "10250/tcp", "30000-32767/tcp"))),
    listeners=frozenset(
        {
            Listener("tcp", None, 22),
            Listener("tcp", ADDRESS, 8443),
            Listener("udp", ADDRESS, 123),
            Listener("tcp", IPv4Address("127.0.0.1"), 5432),
        }
    ),
)


def published(name: str, ports: str, address: str = "10.128.0.2", spec: str = "") -> Pod:
    pod = make_pod(f"[{{name: {name}, image: a, ports: {ports}}}]", spec)
    return with_status(pod, PodStatus(pod_ip=address))


def unchecked(pod: Pod, **fields: object) -> Pod:
    """Return the pod with values in its first port that our own validation rejects, as another API server sends it."""
    [container] = pod.spec.containers
    container = replace(container, ports=(replace(container.ports[0], **fields), *container.ports[1:]))
    return replace(pod, spec=replace(pod.spec, containers=(container,)))


def test_host_ports_are_translated_to_their_pods() -> None:
    web = published("web", "[{containerPort: 80, hostPort: 8080}, {containerPort: 53, hostPort: 54, protocol: UDP}]")
    bound = published("bound", "[{containerPort: 80, hostPort: 80, hostIP: 192.0.2.1}]", "10.128.0.3")
    desired = compile_host_ports([web, bound], NODE)
    assert not desired.skipped
    assert (
        desired.ruleset
        == """\
add table ip podlane-hostports
delete table ip podlane-hostports
table ip podlane-hostports {
	map bound_ports {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 192.0.2.1 . tcp . 80 : 10.128.0.3 . 80 }
	}
	map loopback_ports {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 : 10.128.0.2 . 80, udp . 54 : 10.128.0.2 . 53 }
	}
	map ports {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 : 10.128.0.2 . 80, udp . 54 : 10.128.0.2 . 53 }
	}
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		ip daddr 127.0.0.0/8 return
		fib daddr type != local return
		dnat ip to ip daddr . meta l4proto . th dport map @bound_ports
		dnat ip to meta l4proto . th dport map @ports
	}
	chain output {
		type nat hook output priority -100; policy accept;
		fib daddr type != local return
		dnat ip to ip daddr . meta l4proto . th dport map @bound_ports
		ip daddr 127.0.0.0/8 dnat ip to meta l4proto . th dport map @loopback_ports
		ip daddr 127.0.0.0/8 return
		dnat ip to meta l4proto . th dport map @ports
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 127.0.0.0/8 ip daddr != 127.0.0.0/8 ct status dnat masquerade
	}
}
"""
    )


@pytest.mark.parametrize(
    "pod",
    [
        published("web", "[{containerPort: 80}]"),
        published("web", "[{containerPort: 80, hostPort: 80}]", address=""),
        published("web", "[{containerPort: 80, hostPort: 80}]", spec="  hostNetwork: true"),
    ],
)
def test_ruleset_is_empty_without_ports(pod: Pod) -> None:
    assert compile_host_ports([pod], NODE).ruleset == NO_HOST_PORTS
    assert NO_HOST_PORTS == "add table ip podlane-hostports\ndelete table ip podlane-hostports\n"


@pytest.mark.parametrize(
    ("port", "fields", "reason"),
    [
        ("hostPort: 80, hostIP: 192.0.2.9", {}, "hostIP is 192.0.2.9; an IPv4 address of this node"),
        ("hostPort: 80, hostIP: 'fd00::1'", {}, "hostIP is 'fd00::1'; an IPv4 address"),
        ("hostPort: 80, hostIP: '::'", {}, "hostIP is '::'; an IPv4 address"),
        ("hostPort: 5432, hostIP: 127.0.0.1", {}, "a program of the node listens"),
        ("hostPort: 22, hostIP: 127.0.0.1", {}, "a program of the node listens"),
        ("hostPort: 10250, hostIP: 127.0.0.1", {}, "the node itself needs this port"),
        ("hostPort: 80", {"host_ip": "1.1.1.1 } ; flush ruleset"}, "hostIP is '1.1.1.1 } ; flush ruleset'"),
        ("hostPort: 80", {"protocol": "tcp } ;"}, "TCP, UDP or SCTP is accepted"),
        ("hostPort: 80", {"host_port": 70000}, "ports from 1 to 65535"),
        ("hostPort: 80", {"container_port": 0}, "ports from 1 to 65535"),
        ("hostPort: 53, protocol: UDP", {}, "the node itself needs this port"),
        ("hostPort: 53, protocol: UDP, hostIP: 192.0.2.1", {}, "the node itself needs this port"),
        ("hostPort: 4789, protocol: UDP", {}, "the node itself needs this port"),
        ("hostPort: 10250", {}, "the node itself needs this port"),
        ("hostPort: 30000", {}, "the node itself needs this port"),
        ("hostPort: 32767", {}, "the node itself needs this port"),
        ("hostPort: 22, hostIP: 192.0.2.1", {}, "a program of the node listens"),
        ("hostPort: 8443", {}, "a program of the node listens"),
        ("hostPort: 8443, hostIP: 192.0.2.1", {}, "a program of the node listens"),
        ("hostPort: 123, protocol: UDP", {}, "a program of the node listens"),
    ],
)
def test_bad_port_is_skipped_and_all_others_are_opened(port: str, fields: dict[str, object], reason: str) -> None:
    bad = unchecked(published("bad", f"[{{containerPort: 80, {port}}}, {{containerPort: 81, hostPort: 81}}]"), **fields)
    good = published("good", "[{containerPort: 80, hostPort: 8080}]", "10.128.0.3")
    desired = compile_host_ports([bad, good], NODE)
    [(pod, [message])] = desired.skipped
    assert pod is bad
    assert reason in message
    assert "elements = { tcp . 81 : 10.128.0.2 . 81, tcp . 8080 : 10.128.0.3 . 80 }" in desired.ruleset
    assert "flush" not in desired.ruleset


@pytest.mark.parametrize(
    "port",
    [
        "hostPort: 80, hostIP: 0.0.0.0",
        "hostPort: 80, hostIP: 10.128.0.1",
        "hostPort: 8443, hostIP: 10.128.0.1",
        "hostPort: 8443, hostIP: 127.0.0.1",
        "hostPort: 5432, hostIP: 192.0.2.1",
        "hostPort: 5432, hostIP: 127.0.0.2",
        "hostPort: 5432",
        "hostPort: 10250, protocol: UDP",
        "hostPort: 29999",
        "hostPort: 32768",
    ],
)
def test_ports_next_to_those_of_the_node_are_opened(port: str) -> None:
    assert not compile_host_ports([published("web", f"[{{containerPort: 80, {port}}}]")], NODE).skipped


def test_program_at_a_loopback_address_keeps_its_port_there() -> None:
    web = published("web", "[{containerPort: 80, hostPort: 5432}, {containerPort: 81, hostPort: 81}]")
    ruleset = compile_host_ports([web], NODE).ruleset
    every = "elements = { tcp . 5432 : 10.128.0.2 . 80, tcp . 81 : 10.128.0.2 . 81 }"
    assert (ruleset.count(every), ruleset.count("elements = { tcp . 81 : 10.128.0.2 . 81 }")) == (1, 1)


def test_pod_whose_address_is_no_ipv4_address_opens_no_port() -> None:
    for address in ("fd00::2", "10.128.0.2 }"):
        desired = compile_host_ports([published("web", "[{containerPort: 80, hostPort: 80}]", address)], NODE)
        assert desired.ruleset == NO_HOST_PORTS
        assert len(desired.skipped) == 1


def test_listeners_are_sockets_that_ipv4_clients_reach() -> None:
    heading = "  sl  local_address rem_address   st tx_queue\n"
    tcp = heading + "".join(
        f"   {index}: {local} 00000000:0000 {state} 00000000:00000000\n"
        for index, (local, state) in enumerate(
            [("00000000:0016", "0A"), ("010200C0:20FB", "0A"), ("0100007F:2809", "0A"), ("010200C0:9999", "01")]
        )
    )
    transient = PortRange("udp", 32768, 60999)
    at_loopback = Listener("tcp", IPv4Address("127.0.0.1"), 10249)
    assert set(parse_listeners("tcp", tcp, transient)) == {
        Listener("tcp", None, 22),
        Listener("tcp", ADDRESS, 8443),
        at_loopback,
    }
    assert at_loopback.is_at_loopback
    assert not Listener("tcp", None, 22).is_at_loopback
    rest = "00000000000000000000000000000000:0000 0A 00000000:00000000\n"
    tcp6 = heading + "".join(
        f"   {index}: {local} {rest}"
        for index, local in enumerate(
            (
                "00000000000000000000000000000000:280A",
                "0000000000000000FFFF0000010200C0:1F90",
                "00000000000000000000000001000000:0050",
                "000080FE000000000000000001000000:0051",
            )
        )
    )
    expected = {Listener("tcp", None, 10250), Listener("tcp", ADDRESS, 8080)}
    assert set(parse_listeners("tcp", tcp6, transient)) == expected
    udp = heading + "".join(f"   1: {local} 00000000:0000 07 0:0\n" for local in ("00000000:12B5", "00000000:8000"))
    assert set(parse_listeners("udp", udp, transient)) == {Listener("udp", None, 4789)}


def test_own_sockets_are_read_from_the_kernel() -> None:
    with socket.socket() as listening, socket.socket() as loopback:
        listening.bind(("", 0))
        loopback.bind(("127.0.0.1", 0))
        for each in (listening, loopback):
            each.listen()
        found = read_node_ports(frozenset())
        assert Listener("tcp", None, listening.getsockname()[1]) in found.listeners
        assert Listener("tcp", IPv4Address("127.0.0.1"), loopback.getsockname()[1]) in found.listeners
    assert not any(address.is_loopback for address in found.addresses)


class _Network(NoNetwork):
    def __init__(self) -> None:
        self.is_ready = False

    async def status(self) -> NetworkStatus:
        if not self.is_ready:
            raise NotReady("starting")
        return NetworkStatus(ready=True, reserved_ports=("53/udp",))


class _Events:
    def __init__(self) -> None:
        self.recorded: list[tuple[str, str]] = []

    def pod_event(self, _: Pod, reason: str, message: str) -> None:
        self.recorded.append((reason, message))


async def test_skipped_ports_are_reported_once_and_the_network_names_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    network, events, applied = _Network(), _Events(), list[str]()

    async def apply(text: str) -> None:
        applied.append(text)

    monkeypatch.setattr(host_ports, "apply_ruleset", apply)
    pods: list[Pod] = []

    def active_pods() -> Iterable[Pod]:
        return pods

    own = frozenset({PortRange("tcp", 10250, 10250)})
    manager = HostPortManager(
        active_pods,
        lambda: True,
        network=network,
        own_ports=own,
        events=events,  # type: ignore[arg-type]
    )
    await manager._sync()
    assert applied == [NO_HOST_PORTS], "a node without host ports does not wait for the network"
    ports = ", ".join(f"{{containerPort: {number}, hostPort: 10250, hostIP: 192.0.2.{number}}}" for number in (7, 8))
    pods.append(published("web", f"[{ports}, {{containerPort: 53, hostPort: 53, protocol: UDP}}]"))
    with pytest.raises(NotReady):
        await manager._sync()
    network.is_ready = True
    await manager._sync()
    network.is_ready = False
    await manager._sync()
    assert set(applied) == {NO_HOST_PORTS}
    [(reason, message)] = events.recorded
    assert reason == "HostPortConflict"
    assert message.endswith("; 53/UDP: the node itself needs this port")
