"""The sdn daemon takes over a node of the previous version that carries traffic."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sdn.pipeline.tables import Table
from tests.testbed.isolation.world import reaches
from tests.testbed.namespaces import inside
from tests.testbed.netns import previous_version
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.previous_version import (
    DATAGRAM_PORT,
    DATAGRAM_TARGET,
    INBOX,
    NODE,
    SHOP,
    STICKY,
    STREAM,
    STREAM_PORTS,
    WEB,
    WEB_EXTERNAL_IP,
    find_replies_by_port,
    previous_version_world,
    remains,
    restore,
)
from tests.testbed.netns.services import call
from tests.testbed.traffic import Datagrams, Ping, RepeatedCalls, TcpStream
from tests.testbed.wait import wait_until

DATAGRAMS = 2
"""Datagrams of a call. A busy machine may lose one; what an upgrade breaks stays broken for the port of the caller, and
the pings beside the calls lose no packet."""

STEP = 1 if os.environ.get("PODLANE_ALL_KILLS") else 3
"""A run kills the daemon at one of three calls, from a first one by chance; `make soak` at all."""

CRASHING = Path(previous_version.__file__).with_name("crashing_sdn.py")


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with previous_version_world("podprev") as running:
        yield running


def installed(cluster: PacketWorld) -> dict[str, object]:
    """Return the daemon's state on the node, without learned flows, counters and clients."""
    maps = "host_frontends", "external_frontends", "endpoints", "affinity_ids"
    texts = [cluster.in_node(NODE, "nft", "list", "map", "ip", "podlane-services", name) for name in maps]
    elements = [sorted(re.findall(r"[^,{}\s][^,{}\n]* : [^,{}\n]*[^,{}\s]", text)) for text in texts]
    masquerade = cluster.in_node(NODE, "nft", "list", "table", "ip", "podlane")
    return {
        "flows": cluster.flows(NODE),
        "groups": previous_version.groups(cluster),
        "tables": previous_version.table_names(cluster),
        "elements": elements,
        "masquerade": masquerade,
    }


class Traffic:
    """Traffic of pods and of the node that must continue, and traffic between projects that must not arrive."""

    def __init__(self, cluster: PacketWorld, ending: contextlib.ExitStack) -> None:
        self._cluster = cluster
        red, admin, node = *map(cluster.pod_namespace, ("red-a", "admin-a")), cluster.nodes[NODE].namespace
        addresses = {name: cluster.pods[name].address for name in ("red-a", "red-b", "red-c")}
        self._pings = [Ping(f"/run/netns/{red}", str(addresses[name])) for name in ("red-b", "red-c")]
        stream = partial(TcpStream, target=cluster.pod_namespace("red-c"), address=addresses["red-c"])
        (pod_port, pod_target), (node_port, node_target) = STREAM_PORTS.items()
        streams = {
            "pod to pod": stream(red),
            "pod to service": stream(red, port=pod_target, frontend=(STREAM, pod_port)),
            "node to pod": stream(node),
            "node to service": stream(node, port=node_target, frontend=(STREAM, node_port)),
        }
        for ping in self._pings:
            ending.callback(ping.end)
        for connection in streams.values():
            ending.callback(connection.end)
        self.calls = {
            name: RepeatedCalls(partial(tcp_stream.wait_for_answers, 1)) for name, tcp_stream in streams.items()
        }
        for name, source, address in (
            ("red pod", red, WEB),
            ("red pod", red, WEB_EXTERNAL_IP),
            ("admin pod", admin, STICKY),
            ("blue pod", cluster.pod_namespace("blue-a"), SHOP),
            ("node", node, WEB),
            ("node", node, STICKY),
        ):
            self.calls[f"{name} connects to {address}"] = RepeatedCalls(partial(call, source, address, 80))
            self.calls[f"{name} asks {address}"] = RepeatedCalls(
                partial(call, source, address, 80, "UDP", datagrams=DATAGRAMS)
            )
        for name, source in (("red pod", red), ("node", node)):
            asking = ending.enter_context(asking_socket(source, WEB))
            self.calls[f"{name} asks {WEB} from one port"] = RepeatedCalls(partial(exchange, asking))
        for repeated in self.calls.values():
            ending.callback(repeated.end)
        self._targets = (str(addresses["red-a"]), DATAGRAM_TARGET), (INBOX, DATAGRAM_PORT)
        senders = [(name, cluster.pod_namespace(name)) for name in ("red-b", "red-c", "blue-a", "blue-b")]
        self.datagrams = Datagrams(red, DATAGRAM_TARGET, senders, self._targets)
        ending.callback(self.datagrams.end)

    def wait_for_answers(self, count: int) -> None:
        for ping in self._pings:
            ping.wait_for_answers(count)
        wanted = {name: repeated.done + count for name, repeated in self.calls.items()}
        wait_until(lambda: all(self.calls[name].done >= wanted[name] for name in wanted), f"{count} more calls")

    def check(self) -> None:
        """End the traffic. Check that nothing was lost, and that no project received a packet of another one."""
        assert [ping.lost() for ping in self._pings] == [0, 0]
        for repeated in self.calls.values():
            repeated.end()
        failures = {name: repeated.failures for name, repeated in self.calls.items() if repeated.failures}
        assert failures == {}
        assert all(repeated.answered for repeated in self.calls.values())
        self.datagrams.end()
        allowed = {f"{name} to {address}" for name in ("red-b", "red-c") for address, _ in self._targets}
        assert self.datagrams.received.keys() == allowed
        assert self.datagrams.sent.keys() > allowed


@contextlib.contextmanager
def asking_socket(namespace: str, address: str) -> Iterator[socket.socket]:
    with inside(namespace):
        made = socket.socket(type=socket.SOCK_DGRAM)
    with made:
        made.settimeout(3)
        made.connect((address, 80))
        yield made


def exchange(asking: socket.socket) -> None:
    asking.send(b"who?")
    asking.recv(100)


@contextlib.contextmanager
def traffic(cluster: PacketWorld) -> Iterator[Traffic]:
    with contextlib.ExitStack() as ending:
        running = Traffic(cluster, ending)
        running.wait_for_answers(20)
        yield running
        running.wait_for_answers(20)
        running.check()


def synced(cluster: PacketWorld) -> bool:
    return cluster.network_ready(NODE) and not remains(cluster)


def wait_until_installed(cluster: PacketWorld, wanted: dict[str, object]) -> None:
    """Wait until no previous name is left and the state is as wanted. The services follow the node's network soon."""
    wait_until(lambda: synced(cluster), "the present names")
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: installed(cluster) == wanted, "the present state", seconds=10)
    assert installed(cluster) == wanted


def test_upgrade_loses_no_packet_and_leaves_no_previous_name(cluster: PacketWorld) -> None:
    wanted = installed(cluster)
    assert not remains(cluster)
    cluster.kill(f"{NODE} sdn")
    restore(cluster)
    assert len(remains(cluster)) > 30
    with traffic(cluster):
        cluster.start(f"{NODE} sdn")
        wait_until_installed(cluster, wanted)
        assert reaches(cluster, "red-a", "red-c")
        assert not reaches(cluster, "blue-a", "red-a")


def test_upgrade_from_a_version_that_finds_replies_by_port_loses_no_packet(cluster: PacketWorld) -> None:
    wanted = installed(cluster)
    cluster.kill(f"{NODE} sdn")
    find_replies_by_port(cluster)
    by_port = [flow for flow in cluster.flows(NODE) if "priority=200,tcp,tp_src=" in flow]
    assert {f"table={int(Table.ENDPOINT_LOOKUP)}" in flow for flow in by_port} == {True}
    with traffic(cluster):
        cluster.start(f"{NODE} sdn")
        wait_until_installed(cluster, wanted)
        assert reaches(cluster, "red-a", "red-c")
        assert not reaches(cluster, "blue-a", "red-a")


def test_second_start_after_an_upgrade_changes_no_flow(cluster: PacketWorld) -> None:
    wanted, log = installed(cluster), cluster.log(NODE)
    with traffic(cluster):
        cluster.kill(f"{NODE} sdn")
        cluster.start(f"{NODE} sdn")
        wait_until(lambda: cluster.network_ready(NODE), "the network")
        wait_until(lambda: "services changed" in cluster.log(NODE)[len(log) :], "the services")
    assert installed(cluster) == wanted
    said = cluster.log(NODE)[len(log) :]
    assert "flows changed" not in said
    assert "another version" not in said


def test_upgrade_continues_after_a_kill_at_calls(cluster: PacketWorld) -> None:
    wanted, ours = installed(cluster), cluster.specification(f"{NODE} sdn")
    for calls in itertools.count(random.randint(1, STEP), STEP):
        cluster.kill(f"{NODE} sdn")
        restore(cluster)
        with traffic(cluster):
            command = (sys.executable, str(CRASHING), str(calls), *ours.command[1:])
            cluster.start(f"{NODE} sdn", replace(ours, command=command))
            wait_until(lambda: synced(cluster) or not cluster.is_alive(f"{NODE} sdn"), "the end of the upgrade")
            was_killed = not cluster.is_alive(f"{NODE} sdn")
            assert not reaches(cluster, "blue-a", "red-a")
            if was_killed:
                cluster.start(f"{NODE} sdn")
            wait_until_installed(cluster, wanted)
            assert reaches(cluster, "red-a", "red-c")
            assert not reaches(cluster, "blue-a", "red-a")
        if not was_killed:
            break
    assert calls > 4, "it changes more than that"
