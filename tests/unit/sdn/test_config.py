"""Settings of the sdn daemon that are accepted, and rejected with what was found."""

from __future__ import annotations

import pytest

from reconcile.config_file import InvalidConfig, merge
from sdn.config import Settings, node_identity

GOOD = {"nodeName": "node-1", "nodeIp": "10.245.2.3"}


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("nodeIp", "foo", "nodeIp: found 'foo'; an IPv4 address is accepted"),
        ("nodeIp", "fd00::1", "nodeIp: found 'fd00::1'; an IPv4 address is accepted"),
        ("nodePortRange", "32767-30000", "nodePortRange: found 32767-30000; two ports from 1 to 65535"),
        ("nodePortRange", "1-65536", "nodePortRange: found 1-65536; two ports from 1 to 65535"),
        ("nodePortRange", "0-9", "nodePortRange: found 0-9; two ports from 1 to 65535"),
        ("podToNodePorts", ["0/tcp"], "podToNodePorts: found 0/tcp; ports from 1 to 65535"),
        ("podToNodePorts", ["65536/udp"], "podToNodePorts: found 65536/udp; ports from 1 to 65535"),
        ("podToNodePorts", ["80"], "podToNodePorts"),
        ("podToNodePorts", ["80/tcp } accept"], "podToNodePorts"),
        ("podToNodePorts", ["all", "80/tcp"], "podToNodePorts: found all beside ports; one of both is accepted"),
    ],
)
def test_invalid_setting_is_rejected_with_what_was_found(setting: str, value: object, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        merge(Settings, {**GOOD, setting: value}, {})


def test_node_identity_has_the_node_port_range() -> None:
    assert node_identity(merge(Settings, {**GOOD, "nodePortRange": "1-65535"}, {})).node_ports == (1, 65535)


@pytest.mark.parametrize(
    ("setting", "open_ports"),
    [
        ([], {("tcp", 53), ("udp", 53)}),
        (["5000/tcp", "53/udp"], {("tcp", 53), ("udp", 53), ("tcp", 5000)}),
        (["all"], None),
    ],
)
def test_pods_reach_dns_and_the_named_ports_of_nodes(
    setting: list[str], open_ports: set[tuple[str, int]] | None
) -> None:
    assert node_identity(merge(Settings, {**GOOD, "podToNodePorts": setting}, {})).open_ports == open_ports
