"""The userspace proxy with real packets: only redirected connections reach endpoints."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import count

import pytest

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.userspace.proxier import PORT
from tests.testbed.netns.userspace_proxy import (
    CLIENT_NAMESPACE,
    CONFIG,
    NODE,
    NODE_NAMESPACE,
    ProxyNode,
    listening,
    proxy_namespaces,
    socket_in,
)
from tests.testbed.wait import wait_until

CLUSTER_IP, OTHER_IP, OUTSIDE_IP = (IPv4Address(text) for text in ("172.30.0.9", "172.30.0.10", "172.30.99.1"))
NODE_PORT = 30080
CONNECTIONS = 1000
SEVERAL_BYTES = 3 << 20
MOST_KEPT = 32 << 20
"""Bytes that the kernel's buffers on the way may hold, generously; the proxy's own are 64 KB."""


@pytest.fixture(scope="module")
def cable() -> Iterator[None]:
    with proxy_namespaces():
        yield


@pytest.fixture
def node(cable: None) -> Iterator[ProxyNode]:
    with ProxyNode() as running:
        yield running


_names = count()


def served(
    *backends: socket.socket | EndpointInfo, protocol: Protocol = Protocol.TCP, sticky: int = 0
) -> ServicePortInfo:
    """Return a service port with the same backends for all clients."""
    all_of_them = tuple(
        backend
        if isinstance(backend, EndpointInfo)
        else EndpointInfo(IPv4Address(backend.getsockname()[0]), backend.getsockname()[1])
        for backend in backends
    )
    return ServicePortInfo(
        key=ServicePortName("red", f"web-{next(_names)}", "", protocol),
        vnid=10,
        cluster_ip=CLUSTER_IP,
        port=80,
        node_port=NODE_PORT,
        external_ips=(OUTSIDE_IP,),
        internal_endpoints=all_of_them,
        cluster_endpoints=all_of_them,
        external_endpoints=all_of_them,
        affinity_timeout_seconds=sticky,
    )


def serve(node: ProxyNode, *ports: ServicePortInfo) -> None:
    node.call(node.proxy.sync(CONFIG, ports))


def nobody() -> EndpointInfo:
    """Return an endpoint at a closed port."""
    with listening() as closed:
        return EndpointInfo(NODE, closed.getsockname()[1])


def called(address: IPv4Address = CLUSTER_IP, port: int = 80, caller: str = CLIENT_NAMESPACE) -> socket.socket:
    connection = socket_in(caller)
    try:
        connection.connect((str(address), port))
    except OSError:
        connection.close()
        raise
    return connection


def arrived(*backends: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Return the backend that has a connection, and the connection."""
    ready, _, _ = select.select(backends, [], [], 10)
    connection, _ = ready[0].accept()
    connection.settimeout(10)
    return ready[0], connection


def is_refused(address: IPv4Address, port: int) -> bool:
    """Return whether a connection ends at once: the proxy accepts it before it knows that no endpoint does."""
    with contextlib.closing(socket_in(CLIENT_NAMESPACE)) as connection:
        try:
            connection.connect((str(address), port))
            return connection.recv(1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("caller", [CLIENT_NAMESPACE, NODE_NAMESPACE], ids=["client", "node"])
@pytest.mark.parametrize(("address", "port"), [(CLUSTER_IP, 80), (OUTSIDE_IP, 80), (NODE, NODE_PORT)])
def test_connection_is_copied_both_ways_and_half_closed(
    node: ProxyNode, address: IPv4Address, port: int, caller: str
) -> None:
    with listening() as backend:
        serve(node, served(backend))
        with called(address, port, caller) as client, arrived(backend)[1] as connection:
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b"question"
            assert connection.recv(100) == b""
            connection.sendall(b"answer")
            connection.close()
            assert client.recv(100) == b"answer"
            assert client.recv(100) == b""


def test_endpoints_alternate_and_a_refusing_one_is_skipped(node: ProxyNode) -> None:
    with listening() as first, listening() as other:
        serve(node, served(first, nobody(), other))
        took = []
        for _ in range(6):
            with called():
                backend, connection = arrived(first, other)
                connection.close()
                took.append(backend)
        assert {took.count(first), took.count(other)} <= {2, 3, 4}
        assert len(took) == 6


def test_session_affinity_moves_a_client_only_when_its_endpoint_refuses(node: ProxyNode) -> None:
    with listening() as first, listening() as other:
        serve(node, served(first, other, sticky=600))
        took = []
        for _ in range(4):
            with called():
                backend, connection = arrived(first, other)
                connection.close()
                took.append(backend)
        assert len(set(took)) == 1
        took[0].close()
        left = other if took[0] is first else first
        for _ in range(2):
            with called():
                arrived(left)[1].close()


def test_connection_to_an_unknown_frontend_is_closed(node: ProxyNode) -> None:
    with listening() as backend:
        port = served(backend)
        serve(node, port)
        with called(), arrived(backend)[1]:
            pass
        for address, number in ((CLUSTER_IP, 81), (OTHER_IP, 80), (NODE, NODE_PORT + 1), (NODE, node.proxy.port)):
            assert is_refused(address, number), (address, number)
        serve(node, replace(port, internal_endpoints=()), served(nobody(), protocol=Protocol.UDP))
        assert is_refused(CLUSTER_IP, 80)


def test_endpoint_that_is_a_service_frontend_does_not_loop(node: ProxyNode) -> None:
    circle = served(EndpointInfo(CLUSTER_IP, 80), EndpointInfo(OUTSIDE_IP, 80), EndpointInfo(NODE, NODE_PORT))
    serve(node, circle)
    assert is_refused(CLUSTER_IP, 80)
    serve(node, replace(circle, internal_endpoints=(EndpointInfo(NODE, node.proxy.port),)))
    assert is_refused(CLUSTER_IP, 80)


def test_connections_outlive_their_service_and_are_drained_at_shutdown(node: ProxyNode) -> None:
    with listening() as backend:
        port = served(backend)
        serve(node, port)
        with called() as client, arrived(backend)[1] as connection:
            node.call(node.proxy.update(CONFIG, ServicePortChange(removed=(port,))))
            assert is_refused(CLUSTER_IP, 80)
            client.sendall(b"still here")
            assert connection.recv(100) == b"still here"
            connection.sendall(b"me too")
            connection.close()
            assert client.recv(100) == b"me too"
            client.close()
            node.call(node.proxy.close(drain_seconds=10))


def test_connections_end_at_the_drain_timeout(node: ProxyNode) -> None:
    with listening() as backend:
        serve(node, served(backend))
        with called() as client, arrived(backend)[1] as connection:
            node.call(node.proxy.close(drain_seconds=0.01))
            for side in (client, connection):
                assert _ends(side)


def _ends(side: socket.socket) -> bool:
    try:
        return side.recv(1) == b""
    except ConnectionError:
        return True


def test_lost_peer_ends_both_sides_of_the_connection(node: ProxyNode) -> None:
    with listening() as backend:
        serve(node, served(backend))
        for victim in (0, 1):
            ends = (called(), arrived(backend)[1])
            with ends[1 - victim]:
                ends[victim].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                ends[victim].close()
                assert _ends(ends[1 - victim])


def test_connection_limit_evicts_from_the_client_with_the_max_connections(cable: None) -> None:
    with ProxyNode(max_connections=4) as node, listening() as backend, contextlib.ExitStack() as undo:
        serve(node, served(backend))
        pairs = []
        for caller in (NODE_NAMESPACE, *[CLIENT_NAMESPACE] * 5):
            client = undo.enter_context(called(caller=caller))
            pairs.append((client, undo.enter_context(arrived(backend)[1])))
        first, *others = pairs
        for client, _ in others[:2]:
            assert _ends(client)
        for client, connection in (first, *others[2:]):
            client.sendall(b"still here")
            assert connection.recv(100) == b"still here"


def test_endpoint_that_does_not_read_blocks_its_client(node: ProxyNode) -> None:
    with listening() as backend:
        serve(node, served(backend))
        with called() as client, arrived(backend)[1] as connection:
            client.setblocking(False)
            sent = 0
            while select.select([], [client], [], 0.2)[1]:
                sent += client.send(bytes(1 << 16))
                assert sent < MOST_KEPT
            client.setblocking(True)
            client.shutdown(socket.SHUT_WR)
            taken = 0
            while data := connection.recv(1 << 20):
                taken += len(data)
            assert taken == sent


def test_every_byte_arrives_both_ways_and_every_socket_is_closed(node: ProxyNode) -> None:
    with listening() as backend, ThreadPoolExecutor() as threads:
        serve(node, served(backend))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with called() as client, arrived(backend)[1] as connection:
                there, back = os.urandom(SEVERAL_BYTES), os.urandom(SEVERAL_BYTES)
                halves = [threads.submit(_say, client, there), threads.submit(_say, connection, back)]
                received = [threads.submit(_hear, client), threads.submit(_hear, connection)]
                assert [future.result() for future in received] == [back, there]
                assert [half.result() for half in halves] == [None, None]
        wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, "the proxy's sockets close")


def _say(side: socket.socket, text: bytes) -> None:
    side.sendall(text)
    side.shutdown(socket.SHUT_WR)


def _hear(side: socket.socket) -> bytes:
    taken = bytearray()
    while data := side.recv(1 << 16):
        taken += data
    return bytes(taken)


def test_many_parallel_connections_get_their_own_answers(node: ProxyNode) -> None:
    with listening() as backend, contextlib.ExitStack() as opened:
        serve(node, served(backend))
        clients = [opened.enter_context(called()) for _ in range(CONNECTIONS)]
        for number, client in enumerate(clients):
            client.sendall(number.to_bytes(4, "big"))
        received = 0
        while received < CONNECTIONS:
            connection = opened.enter_context(arrived(backend)[1])
            # A busy proxy may take a backend for an unresponsive one and connect again.
            question = connection.recv(4)
            connection.sendall(question)
            received += bool(question)
        assert [int.from_bytes(client.recv(4), "big") for client in clients] == list(range(CONNECTIONS))


def exchange(client: socket.socket, address: IPv4Address, port: int, text: bytes) -> None:
    client.sendto(text, (str(address), port))


@pytest.mark.parametrize("caller", [CLIENT_NAMESPACE, NODE_NAMESPACE], ids=["client", "node"])
def test_udp_replies_come_from_the_called_frontend(node: ProxyNode, caller: str) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as first, listening(kind) as other, socket_in(caller, kind) as client:
        second = replace(served(other, protocol=Protocol.UDP), cluster_ip=OTHER_IP, external_ips=(), node_port=0)
        serve(node, served(first, protocol=Protocol.UDP), second)
        frontends = ((CLUSTER_IP, 80, first), (OTHER_IP, 80, other), (OUTSIDE_IP, 80, first), (NODE, NODE_PORT, first))
        for address, port, backend in frontends:
            for text in (b"first", b"second"):
                exchange(client, address, port, text)
                question, sender = backend.recvfrom(100)
                backend.sendto(question[::-1], sender)
                assert client.recvfrom(100) == (text[::-1], (str(address), port))


def test_datagram_refused_by_an_endpoint_goes_to_the_next(node: ProxyNode) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as backend, socket_in(CLIENT_NAMESPACE, kind) as client:
        with listening(kind) as closed:
            refusing = EndpointInfo(NODE, closed.getsockname()[1])
        serve(node, served(refusing, backend, protocol=Protocol.UDP))
        exchange(client, CLUSTER_IP, 80, b"who is there")
        question, sender = backend.recvfrom(100)
        assert question == b"who is there"
        backend.sendto(b"me", sender)
        assert client.recv(100) == b"me"


@pytest.mark.parametrize("sticky", [0, 600])
def test_udp_client_leaves_an_endpoint_that_died_after_answering(node: ProxyNode, sticky: int) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as first, listening(kind) as other, socket_in(CLIENT_NAMESPACE, kind) as client:
        serve(node, served(first, other, protocol=Protocol.UDP, sticky=sticky))
        exchange(client, CLUSTER_IP, 80, b"first")
        [backend], _, _ = select.select([first, other], [], [], 10)
        question, sender = backend.recvfrom(100)
        backend.sendto(question, sender)
        assert client.recv(100) == b"first"
        backend.close()
        left = other if backend is first else first

        def is_heard() -> bool:
            exchange(client, CLUSTER_IP, 80, b"second")
            return bool(select.select([left], [], [], 0.01)[0])

        wait_until(is_heard, "the other backend hears the client")


def test_udp_client_of_a_removed_endpoint_gets_another_at_its_next_datagram(node: ProxyNode) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as first, listening(kind) as other, socket_in(CLIENT_NAMESPACE, kind) as client:
        before = served(first, protocol=Protocol.UDP)
        after = replace(before, internal_endpoints=served(other).internal_endpoints)
        serve(node, before)
        exchange(client, CLUSTER_IP, 80, b"before")
        assert first.recv(100) == b"before"
        node.call(node.proxy.update(CONFIG, ServicePortChange(removed=(before,), added=(after,))))
        exchange(client, CLUSTER_IP, 80, b"after")
        assert other.recv(100) == b"after"


def test_datagram_to_the_proxys_own_port_is_dropped(node: ProxyNode) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as backend, socket_in(CLIENT_NAMESPACE, kind) as client:
        serve(node, served(backend, protocol=Protocol.UDP))
        for address, port in ((NODE, node.proxy.port), (CLUSTER_IP, 81), (OTHER_IP, 80)):
            exchange(client, address, port, b"stray")
        with socket_in(CLIENT_NAMESPACE, kind) as honest:
            exchange(honest, CLUSTER_IP, 80, b"fence")
            assert backend.recv(100) == b"fence"
            assert not select.select([backend], [], [], 0)[0]


def test_datagram_burst_of_one_client_arrives_complete(node: ProxyNode) -> None:
    kind = socket.SOCK_DGRAM
    with listening(kind) as backend, socket_in(CLIENT_NAMESPACE, kind) as client:
        serve(node, served(backend, protocol=Protocol.UDP))
        for number in range(10):
            exchange(client, CLUSTER_IP, 80, bytes([number]))
        taken = [backend.recvfrom(100) for _ in range(10)]
        assert [text for text, _ in taken] == [bytes([number]) for number in range(10)]
        assert len({sender for _, sender in taken}) == 1


def test_port_in_use_is_left_to_its_owner(node: ProxyNode) -> None:
    assert node.proxy.port == PORT
    with ProxyNode() as other, listening() as backend:
        assert other.proxy.port != PORT
        serve(other, served(backend))
        with called(), arrived(backend)[1]:
            pass


def test_closed_proxy_leaves_no_socket_open(node: ProxyNode) -> None:
    with listening() as backend:
        serve(node, served(backend))
        with called(), arrived(backend)[1]:
            pass
        node.call(node.proxy.close())
        wait_until(lambda: is_refused(CLUSTER_IP, 80), "a closed proxy takes no connection")
