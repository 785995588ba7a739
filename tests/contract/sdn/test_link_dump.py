"""Links as the kernel lists them, compared with iproute2's, in a network namespace of the test's own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from lab.process import run
from sdn.drivers.link_dump import dump_links, dump_names
from tests.testbed.namespaces import only_loopback

COMMANDS = (
    "link add dev br-a type bridge",
    "link add dev veth-a mtu 1400 type veth peer name veth-b",
    "link set veth-a master br-a up alias red/web",
    "addr add 10.1.2.3/24 dev br-a",
    "addr add 10.1.2.4/32 dev br-a",
    "addr add 10.9.0.1 peer 10.9.0.2/31 dev veth-b",
)


@pytest.fixture
def kernel() -> Iterator[socket.socket]:
    with only_loopback():
        for command in COMMANDS:
            run("ip", *command.split())
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE) as opened:
            yield opened


def test_links_are_those_that_iproute2_lists(kernel: socket.socket) -> None:
    listed = json.loads(run("ip", "-json", "addr", "show"))
    links = dump_links(kernel)
    assert links.keys() == {link["ifname"] for link in listed}
    for link in listed:
        found = links[link["ifname"]]
        assert found.mtu == link["mtu"]
        assert found.master == link.get("master", "")
        assert found.up == ("UP" in link["flags"])
        addresses = {f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"] if each["family"] == "inet"}
        assert set(map(str, found.addresses)) == addresses
    assert [name for name, link in links.items() if link.alias == "red/web"] == ["veth-a"]
    assert dump_names(kernel) == {link["ifindex"]: link["ifname"] for link in listed}


def test_more_links_than_fit_into_one_message(kernel: socket.socket) -> None:
    for number in range(40):
        run("ip", "link", "add", "dev", f"d{number}", "type", "bridge")
    assert {f"d{number}" for number in range(40)} <= dump_links(kernel).keys()
