"""Settings that a join writes, and what it checks before."""

from __future__ import annotations

import argparse
import datetime
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from api.core.node import Node, NodeAddress, NodeStatus
from api.meta.types import Condition, ObjectMeta
from api.network.types import ClusterNetwork
from api.pki.pem import Certificate, Subject
from cli.command import positive_number
from cli.join import checks, settings
from cli.join.checks import Link, Route
from cli.join.settings import BadSettings, NodeFiles, with_settings

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
ADDRESS = IPv4Address("192.0.2.7")
LINKS = (
    Link("lo", IPv4Interface("127.0.0.1/8")),
    Link("eth0", IPv4Interface("192.0.2.7/24")),
    Link("tun0", IPv4Interface("10.128.0.1/23")),
)
NETWORK = ClusterNetwork(network="10.128.0.0/14", service_network="172.30.0.0/16")


@pytest.mark.parametrize("name", ["sdn", "node-agent"])
def test_only_the_settings_of_a_join_change_in_the_example(name: str) -> None:
    text = (ROOT / "systemd" / f"{name}.yaml").read_text()
    done = with_settings(text, {"nodeName": "web-1", "nodeIp": "192.0.2.7", "extra": "x"}, name)
    assert yaml.safe_load(done) == {
        **yaml.safe_load(text),
        "nodeName": "web-1",
        "nodeIp": "192.0.2.7",
        "extra": "x",
    }
    changed = [line for line in done.splitlines() if line not in text.splitlines()]
    assert changed == ["nodeName: web-1", "nodeIp: 192.0.2.7", "extra: x"]
    assert with_settings(done, {"nodeName": "web-1"}, name) == done


def test_comment_after_a_setting_stays() -> None:
    assert with_settings("nodeName: 'a #b' # mine\nmtu: 5", {"nodeName": "c"}, "f") == "nodeName: c # mine\nmtu: 5"
    assert with_settings("# nodeName: a", {"nodeName": "c"}, "f") == "# nodeName: a\nnodeName: c\n"
    assert with_settings("nodeNames: a\n", {"nodeName": "c"}, "f") == "nodeNames: a\nnodeName: c\n"


@given(st.text(max_size=20), st.dictionaries(st.sampled_from("abc"), st.text(max_size=20)))
def test_any_name_is_written_as_text_and_nothing_else_changes(value: str, others: dict[str, str]) -> None:
    text = yaml.safe_dump(others, allow_unicode=True) if others else ""
    try:
        done = with_settings(text, {"nodeName": value}, "f")
    except BadSettings:
        assert any(not word.isprintable() for word in (value, *others.values()))
        return
    assert yaml.safe_load(done) == {**(yaml.safe_load(text) or {}), "nodeName": value}


@pytest.mark.parametrize("name", ["1", "1e3", "no", "null", "2001-01-01", "0x1f"])
def test_name_that_yaml_would_read_as_something_else_is_quoted(name: str) -> None:
    assert with_settings("", {"nodeName": name}, "f") == f'nodeName: "{name}"\n'


@pytest.mark.parametrize("text", ["{nodeName: a}", "- a", "a", "nodeName: >\n  a\n  b\n", "a: b\n---\nc: d\n", "a: ["])
def test_file_of_another_form_is_not_changed(text: str) -> None:
    with pytest.raises(BadSettings, match=r"^f: "):
        with_settings(text, {"nodeName": "c"}, "f")


def test_files_are_those_of_the_settings() -> None:
    found = settings.node_files({"kubeconfig": "/k", "ovsRundir": "/o"}, {"kubeconfig": "/k", "pauseImage": "p"}, "d")
    assert found == NodeFiles("/k", "/etc/podlane/bootstrap.kubeconfig", "/var/run/docker.sock", "p", "/o")
    with pytest.raises(BadSettings, match=r"found the kubeconfigs /etc/podlane/node\.kubeconfig and /k"):
        settings.node_files({"kubeconfig": "/k"}, {}, "d")


def test_arguments() -> None:
    right = ("https://192.0.2.1:8443", "abcdef.0123456789abcdef", (f"sha256:{'a' * 64}",))
    assert not [*checks.argument_problems(*right)]
    for server in (
        "http://a",
        "https://",
        "https://a/b",
        "https://u:p@a",
        "https://a:0",
        "https://a:x",
        "a",
        "https://a\nb",
    ):
        assert [*checks.argument_problems(server, *right[1:])] == [
            "the URL is not of the form https://HOST:PORT, which is accepted"
        ]
    for token in ("", "abcdef.0123456789abcde", "abcdef.0123456789abcdeF", "abcdef.0123456789abcdef\n"):
        (problem,) = checks.argument_problems(right[0], token, right[2])
        assert problem.startswith("--token is not of the form")
    for text in ("sha256:a", "a" * 64, f"sha1:{'a' * 64}", f"sha256:{'A' * 64}"):
        (problem,) = checks.argument_problems(*right[:2], (text,))
        assert problem.startswith("--ca-hash is ")


def test_clock() -> None:
    authority = Certificate(Subject("ca"), NOW - DAY, NOW + DAY, "")
    assert not [*checks.clock_problems(NOW, NOW - HOUR, (authority,))]
    assert not [*checks.clock_problems(NOW, None, (authority,))]
    (behind,) = checks.clock_problems(NOW - 2 * DAY, NOW, (authority,))
    assert "says 2026-02-27 12:00:00 UTC, and the cluster's authority is valid from 2026-02-28 12:00 to" in behind
    (apart,) = checks.clock_problems(NOW, NOW + 2 * HOUR, (authority,))
    assert apart.endswith("that of the master 2026-03-01 14:00:00 UTC; at most an hour apart is accepted")


def test_address() -> None:
    assert not [*checks.address_problems(ADDRESS, LINKS)]
    for text, problem in (
        ("127.0.0.1", "one that other nodes reach"),
        ("169.254.1.1", "one that other nodes reach"),
        ("192.0.2.8", "one of this host is accepted: 192.0.2.7 (--address)"),
        ("10.128.0.1", "one of this host is accepted: 192.0.2.7 (--address)"),
    ):
        (found,) = checks.address_problems(IPv4Address(text), LINKS)
        assert problem in found


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a..b", "a" * 254, "", "a\nb", "ä"])
def test_host_name_that_is_no_name_of_a_node(name: str) -> None:
    (problem,) = checks.name_problems(name, "the name of this host")
    assert "(the name of this host)" in problem
    assert not [*checks.name_problems("web-1.example.com", "")]


def test_name_of_another_node() -> None:
    def node(ready: str, *addresses: str) -> Node:
        listed = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
        conditions = (Condition(type="Ready", status=ready),)
        return Node(metadata=ObjectMeta(name="n"), status=NodeStatus(addresses=listed, conditions=conditions))

    assert not [*checks.name_conflicts("n", ADDRESS, None)]
    assert not [*checks.name_conflicts("n", ADDRESS, node("Unknown", "192.0.2.7"))]
    for ready in ("True", "False"):
        (problem,) = checks.name_conflicts("n", ADDRESS, node(ready, "192.0.2.7"))
        assert "which sends heartbeats" in problem
    for ready in ("True", "Unknown"):
        (problem,) = checks.name_conflicts("n", ADDRESS, node(ready, "192.0.2.8"))
        assert "with the address 192.0.2.8; this host has 192.0.2.7" in problem


def test_networks() -> None:
    routes = (Route(IPv4Network("0.0.0.0/0"), "eth0"), Route(IPv4Network("192.0.2.0/24"), "eth0"))
    own = (Route(IPv4Network("10.128.0.0/14"), "tun0"),)
    assert not [*checks.network_conflicts(NETWORK, ADDRESS, LINKS, (*routes, *own))]
    (route,) = checks.network_conflicts(NETWORK, ADDRESS, LINKS, (Route(IPv4Network("10.0.0.0/8"), "wg0"),))
    assert route == "there is a route to 10.0.0.0/8 through wg0, which overlaps the cluster network 10.128.0.0/14"
    link = Link("eth1", IPv4Interface("172.30.5.1/24"))
    found = [
        *checks.network_conflicts(
            NETWORK, link.address.ip, (*LINKS, link), (Route(IPv4Network("172.30.5.0/24"), "eth1"),)
        )
    ]
    assert [text.partition(" ")[0] for text in found] == ["the", "eth1"]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "x", ""])
def test_numbers_of_hours_and_seconds(text: str) -> None:
    assert positive_number("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number above 0 and up to 1000000"):
        positive_number(text)
