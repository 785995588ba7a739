"""The arguments of `podlane network trace` and their invalid combinations."""

from __future__ import annotations

import argparse

import pytest

from api.network.queries import TraceRequest
from cli.command import UsageError
from cli.trace.packet import add_arguments, build_request
from tests.unit.cli.trace.examples import KNOWN


def read(words: str) -> tuple[str, TraceRequest]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(words.split())
    source, target = KNOWN.find_host(arguments.source), KNOWN.find_host(arguments.target)
    assert source is not None
    assert target is not None
    return build_request(arguments, source, target, KNOWN)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("red/a blue/b --port 80", "--port: is 80; icmp has no ports, tcp and udp have"),
        ("red/a blue/b --proto arp --port 80", "--port: is 80; arp has no ports"),
        ("red/a blue/b --proto tcp --port 70000", "--port: is 70000; 0 to 65535 is accepted"),
        (
            "red/a blue/b --proto udp --port 53 --fragment later",
            "--port: is 53; only the first fragment carries the port",
        ),
        ("red/a blue/b --proto arp --fragment later", '--fragment: is "later"; is accepted only with icmp, tcp, udp'),
        ("red/a blue/b --proto ipv6 --source-address 10.128.0.9", '--source-address: is "10.128.0.9"; an IPv6 packet'),
        ("red/a blue/b --source-address nobody", '--source-address: is "nobody"; an IPv4 address is accepted'),
        ("red/a blue/b --source-mac 0a:58", '--source-mac: is "0a:58"; a MAC such as 0a:58:0a:80:00:02 is accepted'),
        ("red/a blue/b --target-mac all", '--target-mac: is "all"; a MAC such as'),
        ("red/a node-1 --proto tcp", "--port is required with --proto tcp: the firewall of node-1 decides by the port"),
        ("red/a 10.245.2.4 --proto udp", "--port is required with --proto udp"),
        ("red/a blue/b --vlan 4096", "--vlan: is 4096; 0 to 4095 is accepted"),
        ("red/a blue/b --vlan -1", "--vlan: is -1; 0 to 4095 is accepted"),
        ("red/a blue/b --vnid 10", "--vnid requires --from-tunnel: a packet that SRC sends"),
        ("red/a blue/b --on node-2", "--on requires --from-outside or --from-tunnel"),
        ("8.8.8.8 blue/b", "8.8.8.8 is in no node's subnet: add --from-outside or --from-tunnel"),
        ("8.8.8.8 blue/b --from-outside --vnid 0", "a packet from outside has VNID 0"),
        ("8.8.8.8 blue/b --from-outside --source-address 8.8.4.4", "--source-address requires a packet that SRC sends"),
        ("8.8.8.8 8.8.4.4 --from-outside", "8.8.4.4 is on no node: add the node that the packet reaches, --on NODE"),
        (
            "8.8.8.8 blue/b --from-outside --on node-3",
            "node-3 is not a node with a subnet; nodes with a subnet are node-1, node-2",
        ),
        ("red/a blue/b --from-tunnel node-1", "--from-tunnel needs --vnid"),
        ("red/a blue/b --from-tunnel nowhere --vnid 1", "--from-tunnel nowhere: is neither a node nor an IPv4 address"),
        ("red/a blue/b --from-tunnel node-1 --vnid 16777216", "--vnid: is 16777216; 0 to 16777215 is accepted"),
    ],
)
def test_contradictory_trace_arguments_are_rejected(words: str, refusal: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(words)
    assert refusal in str(refused.value)


def test_trace_packet_from_outside_or_a_tunnel(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("red/a blue/b --from-outside --from-tunnel node-1")
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "node", "enters", "sender"),
    [
        ("red/a blue/b", "node-1", "pod", "10.128.0.2"),
        ("10.128.0.2 blue/b", "node-1", "pod", "10.128.0.2"),
        ("node-1 blue/b", "node-1", "node", ""),
        ("10.128.2.1 red/a", "node-2", "node", ""),
        ("red/guest red/a", "node-2", "node", ""),
        ("10.128.1.130 blue/b", "node-1", "docker", "10.128.1.130"),
        ("8.8.8.8 blue/b --from-outside", "node-2", "node", ""),
        ("8.8.8.8 blue/b --from-outside --on node-1", "node-1", "node", ""),
        ("red/a blue/b --from-tunnel 10.9.9.9 --vnid 10", "node-2", "tunnel", ""),
    ],
)
def test_trace_source_determines_the_ingress_port(words: str, node: str, enters: str, sender: str) -> None:
    actual, trace_request = read(words)
    assert (actual, trace_request.enters, trace_request.sender) == (node, enters, sender)


def test_trace_tunnel_source_is_a_node_name_or_address() -> None:
    assert read("red/a blue/b --from-tunnel node-1 --vnid 7")[1].tunnel_source == "10.245.2.3"
    assert read("red/a blue/b --from-tunnel 10.9.9.9 --vnid 7")[1].tunnel_source == "10.9.9.9"
