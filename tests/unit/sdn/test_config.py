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
        (
            "nodePortRange",
            "32767-30000",
            "nodePortRange: found '32767-30000'; two ports from 1 to 65535 in this order are accepted",
        ),
        (
            "nodePortRange",
            "1-65536",
            "nodePortRange: found '1-65536'; two ports from 1 to 65535 in this order are accepted",
        ),
        ("nodePortRange", "0-9", "nodePortRange: found '0-9'; two ports from 1 to 65535 in this order are accepted"),
        ("nodePortRange", 80, "nodePortRange: found 80; FIRST-LAST such as 30000-32767 is accepted; put it in quotes"),
        ("podToNodePorts", ["0/tcp"], "podToNodePorts[0]: found '0/tcp'; ports from 1 to 65535 are accepted"),
        (
            "podToNodePorts",
            ["53/tcp", "65536/udp"],
            "podToNodePorts[1]: found '65536/udp'; ports from 1 to 65535 are accepted",
        ),
        (
            "podToNodePorts",
            ["80"],
            "podToNodePorts[0]: found '80'; PORT/tcp, PORT/udp, PORT/sctp or all is accepted",
        ),
        (
            "podToNodePorts",
            ["80/tcp } accept"],
            "podToNodePorts[0]: found '80/tcp } accept'; PORT/tcp, PORT/udp, PORT/sctp or all is accepted",
        ),
        (
            "podToNodePorts",
            ["all", "80/tcp"],
            "podToNodePorts[0]: found 'all'; it is accepted alone, and ports without it",
        ),
        ("podToNodePorts", "80/tcp", "podToNodePorts: found a text; a list is accepted"),
        ("datapathType", "kernel", "datapathType: found 'kernel'; auto, netdev, system are accepted"),
        ("proxyMode", "iptables", "proxyMode: found 'iptables'; nftables, userspace are accepted"),
        ("logLevel", False, "logLevel: found false; debug, error, info, warning are accepted"),
        ("resyncSeconds", 0, "resyncSeconds: found 0; a number above 0 is accepted"),
        ("healthAddress", "10249", "healthAddress: found '10249'; ADDRESS:PORT such as 127.0.0.1:10249 is accepted"),
        (
            "healthAddress",
            "127.0.0.1:65536",
            "healthAddress: found '127.0.0.1:65536'; ADDRESS:PORT such as 127.0.0.1:10249 is accepted",
        ),
        (
            "clusterDomain",
            "Cluster.Local",
            "clusterDomain: found 'Cluster.Local'; a DNS domain in lower case such as cluster.local is accepted",
        ),
    ],
)
def test_invalid_setting_is_rejected_with_what_was_found(setting: str, value: object, reason: str) -> None:
    merge(Settings, GOOD, {})
    with pytest.raises(InvalidConfig) as raised:
        merge(Settings, {**GOOD, setting: value}, {})
    assert str(raised.value) == reason


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
