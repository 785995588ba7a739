"""Veth pairs of pods, in network namespaces of the real kernel."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from reconcile.errors import Gone, NotReady, Refused
from sdn.drivers import rtnetlink
from sdn.drivers.netlink import Netlink
from sdn.drivers.rtnetlink import LOOPBACK, MAX_ALIAS_BYTES
from sdn.model.host import VethPair
from tests.testbed.namespaces import only_loopback
from tests.testbed.wait import wait_until

DEADLINE_SECONDS = 20.0


@pytest.fixture
def pod() -> Iterator[VethPair]:
    """A pod's veth pair to create; this thread is in a node's network namespace of its own."""
    with only_loopback(), subprocess.Popen(("unshare", "--net", "sleep", "infinity")) as sandbox:
        netns = f"/proc/{sandbox.pid}/ns/net"
        own = os.readlink("/proc/thread-self/ns/net")
        wait_until(lambda: os.readlink(netns) != own, "the sandbox")
        yield VethPair(
            device="veth1",
            netns=netns,
            ifname="eth0",
            mac="0a:58:0a:80:00:05",
            address=IPv4Interface("10.128.0.5/23"),
            gateway=IPv4Address("10.128.0.1"),
            mtu=1450,
            tx_checksum_offload=False,
        )
        sandbox.kill()


def call(act: Callable[[Netlink], Awaitable[None]]) -> None:
    """Call a function with the driver, whose threads are in the network namespace of this thread."""

    async def calling() -> None:
        async with Netlink() as netlink:
            await act(netlink)

    asyncio.run(calling())


def shown(*words: str, of: VethPair | None = None) -> list[dict[str, Any]]:
    """Return what `ip` shows, on the node or in a pod."""
    enter = ("nsenter", f"--net={of.netns}") if of is not None else ()
    done = subprocess.run((*enter, "ip", "-json", *words), check=True, capture_output=True)
    return list(json.loads(done.stdout))


def test_pods_end_has_its_configuration_and_the_hosts_end_is_down(pod: VethPair) -> None:
    call(lambda netlink: netlink.create_veth_pair(pod))
    (inside,) = shown("addr", "show", "eth0", of=pod)
    assert (inside["address"], inside["mtu"]) == (pod.mac, pod.mtu)
    assert [(info["local"], info["prefixlen"]) for info in inside["addr_info"]] == [("10.128.0.5", 23)]
    assert "UP" in inside["flags"]
    assert "UP" in shown("link", "show", "lo", of=pod)[0]["flags"]
    routes = {route["dst"]: route.get("gateway", route.get("scope")) for route in shown("route", of=pod)}
    assert routes == {"default": "10.128.0.1"}
    (outside,) = shown("link", "show", "veth1")
    assert outside["mtu"] == pod.mtu
    assert "UP" not in outside["flags"]
    assert Path("/proc/thread-self/net/if_inet6").read_text().count("veth1") == 0
    features = subprocess.run(
        ("nsenter", f"--net={pod.netns}", "ethtool", "-k", "eth0"), check=True, capture_output=True, text=True
    )
    assert "tx-checksumming: off" in features.stdout


def test_pair_of_an_interrupted_attempt_is_replaced(pod: VethPair) -> None:
    call(lambda netlink: netlink.create_veth_pair(pod))
    call(lambda netlink: netlink.create_veth_pair(replace(pod, mtu=1300)))
    assert shown("link", "show", "eth0", of=pod)[0]["mtu"] == 1300


@pytest.mark.parametrize("promiscuous", [False, True])
def test_hosts_ends_are_set_up_with_their_aliases(pod: VethPair, promiscuous: bool) -> None:
    long = "é" * MAX_ALIAS_BYTES

    async def act(netlink: Netlink) -> None:
        await netlink.create_veth_pair(pod)
        await netlink.create_veth_pair(replace(pod, device="veth2", ifname="eth1"))
        await netlink.set_up({"veth1": "podlane red/web", "veth2": long}, promiscuous=promiscuous)

    call(act)
    links = [shown("link", "show", device)[0] for device in ("veth1", "veth2")]
    assert [link["ifalias"] for link in links] == ["podlane red/web", long[: MAX_ALIAS_BYTES // 2]]
    assert all("UP" in link["flags"] and ("PROMISC" in link["flags"]) == promiscuous for link in links)


def test_deleting_twice_is_no_error(pod: VethPair) -> None:
    async def act(netlink: Netlink) -> None:
        await netlink.create_veth_pair(pod)
        for _ in range(2):
            await netlink.delete_links(("veth1",))

    call(act)
    assert [link["ifname"] for link in shown("link")] == ["lo"]
    assert [link["ifname"] for link in shown("link", of=pod)] == ["lo"]


def test_errors_name_their_subject(pod: VethPair) -> None:
    with pytest.raises(Gone, match="/nowhere: No such file or directory; the sandbox is gone"):
        call(lambda netlink: netlink.create_veth_pair(replace(pod, netns="/nowhere")))
    with pytest.raises(NotReady, match="links veth1: the kernel says No such device"):
        call(lambda netlink: netlink.set_up({"veth1": ""}, promiscuous=False))
    with pytest.raises(Refused, match="veth pair veth1: the kernel says"):
        call(lambda netlink: netlink.create_veth_pair(replace(pod, mtu=10)))
    with pytest.raises(Refused, match="veth pair veth1: cannot be encoded"):
        call(lambda netlink: netlink.create_veth_pair(replace(pod, mtu=-1)))


def test_kernel_answers_more_requests_than_its_buffer_holds_answers() -> None:
    with only_loopback(), socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(DEADLINE_SECONDS)
        for _ in range(2):
            rtnetlink.send(kernel, *[rtnetlink.set_up("lo", "a" * 200, promiscuous=False)] * 1000)
        missing, present = rtnetlink.delete_link("missing"), rtnetlink.set_up_by_index(LOOPBACK)
        with pytest.raises(OSError, match="No such device"):
            rtnetlink.send(kernel, missing, *[present] * 200)
        rtnetlink.send(kernel, present)
