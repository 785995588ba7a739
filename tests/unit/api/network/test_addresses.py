"""Which addresses can be reached from other machines."""

from __future__ import annotations

import pytest

from api.core.node import Node, NodeAddress, NodeStatus
from api.core.pod import Pod, PodIP, PodStatus
from api.meta.types import ObjectMeta
from api.network.addresses import unreachable_reason
from api.validation.registry import RULES

NOWHERE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::",
    "fe80::1", "fe80::1%eth0", "ff02::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:0.0.0.0",
    "::ffff:169.254.169.254", "::ffff:224.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
]  # fmt: skip


@pytest.mark.parametrize("address", NOWHERE)
def test_address_with_a_special_meaning_is_unreachable(address: str) -> None:
    assert unreachable_reason(address) == "an address that other nodes can reach is accepted"


@pytest.mark.parametrize("address", ["", "localhost", "127.1", "2130706433", "10.0.0.1:80", "[::1]"])
def test_text_that_is_no_address_is_rejected(address: str) -> None:
    assert unreachable_reason(address) == "an IP address is accepted"


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "100.64.0.1", "203.0.113.9", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1"]
)
def test_machine_addresses_are_accepted(address: str) -> None:
    assert unreachable_reason(address) == ""


@pytest.mark.parametrize(
    ("kind", "address", "refused"),
    [
        ("InternalIP", "169.254.169.254", True),
        ("InternalIP", "224.0.0.1", True),
        ("InternalIP", "10.0.0.1", False),
        ("ExternalIP", "::ffff:127.0.0.1", True),
        ("ExternalIP", "some.name", True),
        ("ExternalIP", "2001:db8::1", False),
        ("Hostname", "localhost", False),
    ],
)
def test_node_addresses_are_validated(kind: str, address: str, *, refused: bool) -> None:
    rows = (NodeAddress(type="Hostname", address="n1"), NodeAddress(type=kind, address=address))
    node = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(addresses=rows))
    actual = [problem.path for problem in RULES[Node].validate(node)]
    assert actual == (["status.addresses[1].address"] if refused else [])


def test_pod_addresses_are_validated() -> None:
    def error_paths(first: str, *more: str) -> list[str]:
        status = PodStatus(pod_ip=first, pod_ips=tuple(PodIP(ip=address) for address in more))
        paths = [problem.path for problem in RULES[Pod].validate(Pod(metadata=ObjectMeta(name="p"), status=status))]
        return [path for path in paths if path.startswith("status")]

    assert error_paths("") == []
    assert error_paths("10.1.0.1", "10.1.0.1", "fd00::1") == []
    assert error_paths("127.0.0.1", "10.1.0.1", "::ffff:127.0.0.1") == ["status.podIP", "status.podIPs[1].ip"]
