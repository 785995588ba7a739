"""The name server over UDP and TCP, with upstream servers; the client is dnspython."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rrset
import pytest
from dns.rdataclass import CH, IN
from dns.rdatatype import AXFR, A

from nameserver import forwarder
from nameserver.forwarder import Forwarder
from nameserver.resolv_conf import Upstream
from nameserver.resolver import UNKNOWN_CLIENT
from nameserver.server import MAX_CONNECTIONS, NameServer
from nameserver.service_store import ServiceStore
from reconcile.errors import NotReady
from tests.unit.nameserver.examples import endpoint, names, service, slice_of

HERE, POD, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
VNIDS = {POD: 10, OTHER: 11, HERE: 0}
WEB, DB, MANY = "web.red.svc.cluster.local", "db.red.svc.cluster.local", "many.red.svc.cluster.local"


@dataclass
class Other:
    """An upstream server that answers by `answer` and records the questions."""

    port: int = 0
    questions: list[str] = field(default_factory=list)
    answer: Callable[[dns.message.Message], dns.message.Message | bytes | None] = lambda _: None
    by_tcp: Callable[[dns.message.Message], dns.message.Message] | None = None
    ids: list[int] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    _tcp: asyncio.Server | None = None
    _udp: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Other:
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._talk, HERE, 0)
        self.port = self._tcp.sockets[0].getsockname()[1]
        other = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                other._udp = cast("asyncio.DatagramTransport", transport)

            def datagram_received(self, data: bytes, pair: tuple[str, int]) -> None:
                query = dns.message.from_wire(data)
                other.questions.append(str(query.question[0]))
                other.ids.append(query.id)
                other.ports.append(pair[1])
                response = other.answer(query)
                if response is not None and other._udp is not None:
                    other._udp.sendto(
                        response if isinstance(response, bytes) else response.to_wire(max_size=65535), pair
                    )

        await loop.create_datagram_endpoint(Udp, (HERE, self.port))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (self._udp, self._tcp):
            if server is not None:
                server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2))
        query = dns.message.from_wire(await reader.readexactly(length))
        assert self.by_tcp is not None
        wire = self.by_tcp(query).to_wire(max_size=65535)
        writer.write(len(wire).to_bytes(2) + wire)
        await writer.drain()
        writer.close()


def says(address: str, ttl: int = 60, **more: int) -> Callable[[dns.message.Message], dns.message.Message]:
    """Return an answer that has this address for every name."""

    def answer(query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.answer.append(dns.rrset.from_text(query.question[0].name, ttl, "IN", "A", address))
        response.flags |= more.get("flags", 0)
        return response

    return answer


def denies(seconds: int) -> Callable[[dns.message.Message], dns.message.Message]:
    """Return an answer that no name exists."""

    def answer(query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.set_rcode(dns.rcode.NXDOMAIN)
        response.authority.append(dns.rrset.from_text("com.", 600, "IN", "SOA", f"a.com. b.com. 1 1 1 1 {seconds}"))
        return response

    return answer


def fails(query: dns.message.Message) -> dns.message.Message:
    response = dns.message.make_response(query)
    response.set_rcode(dns.rcode.SERVFAIL)
    return response


def directory() -> ServiceStore:
    service_store = ServiceStore()
    many = (endpoint(f"10.128.{number // 250}.{number % 250 + 2}") for number in range(1000))
    few = (endpoint(f"10.128.0.{number}") for number in range(2, 6))
    service_store.replace(
        [
            service("red", "web", '{"clusterIP": "172.30.0.5", "ports": [{"port": 80}]}'),
            service("red", "db", '{"clusterIP": "None"}'),
            service("red", "many", '{"clusterIP": "None"}'),
            service("red", "docs", '{"type": "ExternalName", "externalName": "www.example.com"}'),
        ],
        [slice_of("many", "red", *many), slice_of("db", "red", *few)],
    )
    return service_store


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "UPSTREAM_TIMEOUT_SECONDS", 0.3)


Answering = Callable[..., Awaitable[tuple[NameServer, int]]]


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    """Yield a function that starts a server with these upstream servers and returns it and its port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*others: Other, known: ServiceStore | None = None) -> tuple[NameServer, int]:
            to_others = Forwarder(lambda: [Upstream(HERE, other.port) for other in others]) if others else None
            server = NameServer(
                names(known or directory()), lambda address: VNIDS.get(address, UNKNOWN_CLIENT), to_others
            )
            port = await server.start(HERE, 0)
            stack.push_async_callback(server.stop)
            if to_others is not None:
                stack.push_async_callback(to_others.close)
            return server, port

        yield start


async def send_query(
    port: int, name: str, kind: str = "A", source: str = HERE, payload: int = 0, flags: int = dns.flags.RD
) -> dns.message.Message:
    use_edns = 0 if payload else None
    query = dns.message.make_query(name, kind, use_edns=use_edns, payload=payload or None, flags=flags)
    return await dns.asyncquery.udp(query, HERE, 5, port, source=source)


def rows(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


async def test_service_name_resolves_over_udp_and_tcp(answering: Answering) -> None:
    _, port = await answering()
    assert rows(await send_query(port, WEB)) == ["172.30.0.5"]
    answer = await dns.asyncquery.tcp(dns.message.make_query(WEB, "A"), HERE, 5, port)
    assert rows(answer) == ["172.30.0.5"]
    assert answer.flags & dns.flags.AA


async def test_cached_answer_is_valid_for_its_project_and_ttl_only(answering: Answering) -> None:
    known = directory()
    server, port = await answering(known=known)
    for _ in range(2):
        assert rows(await send_query(port, WEB, source=POD)) == ["172.30.0.5"]
        assert (await send_query(port, WEB, source=OTHER)).rcode() == dns.rcode.NXDOMAIN
        assert (await send_query(port, WEB, source="127.0.0.9")).rcode() == dns.rcode.NXDOMAIN
    known.put_service(("red", "web"), service("red", "web", '{"clusterIP": "172.30.0.6"}'))
    assert rows(await send_query(port, WEB, source=POD)) == ["172.30.0.6"]
    server.update(names(known, {"red": 11}), lambda address: VNIDS.get(address, UNKNOWN_CLIENT))
    assert rows(await send_query(port, WEB, source=OTHER)) == ["172.30.0.6"]
    assert (await send_query(port, WEB, source=POD)).rcode() == dns.rcode.NXDOMAIN


async def test_headless_service_addresses_are_shuffled_uniformly(answering: Answering) -> None:
    """Chi-square with 3 degrees of freedom; 16.27 is exceeded by chance once in a thousand times, 30 in a million."""
    _, port = await answering()
    firsts = Counter([rows(await send_query(port, DB))[0] for _ in range(800)])
    assert len(firsts) == 4
    assert sum((count - 200) ** 2 / 200 for count in firsts.values()) < 30
    assert sorted(rows(await send_query(port, DB))) == [f"10.128.0.{number}" for number in range(2, 6)]


@pytest.mark.parametrize(("payload", "most"), [(0, 512), (800, 800), (65000, 1232)])
async def test_long_answer_is_truncated_over_udp_and_complete_over_tcp(
    answering: Answering, payload: int, most: int
) -> None:
    _, port = await answering()
    cut = await send_query(port, MANY, payload=payload)
    assert cut.flags & dns.flags.TC
    assert most - 30 < len(cut.to_wire()) <= most
    assert len(rows(cut)) > 20
    whole = await dns.asyncquery.tcp(dns.message.make_query(MANY, "A"), HERE, 5, port)
    assert not whole.flags & dns.flags.TC
    assert len(set(rows(whole))) == 1000


async def test_tcp_connection_answers_several_queries(answering: Answering) -> None:
    _, port = await answering()
    reader, writer = await asyncio.open_connection(HERE, port)
    wire = dns.message.make_query(WEB, "A").to_wire()
    writer.write((len(wire).to_bytes(2) + wire) * 3)
    for _ in range(3):
        length = int.from_bytes(await reader.readexactly(2))
        assert rows(dns.message.from_wire(await reader.readexactly(length))) == ["172.30.0.5"]
    writer.write(b"\0\3abc")
    assert await reader.read() == b"", "who asks nothing is hung up on"
    writer.close()


@pytest.mark.parametrize(
    ("change", "rcode"),
    [
        (lambda q: q.set_opcode(dns.opcode.NOTIFY), dns.rcode.NOTIMP),
        (lambda q: q.question.append(q.question[0]), dns.rcode.FORMERR),
        (lambda q: q.question.clear(), dns.rcode.FORMERR),
        (lambda q: q.use_edns(1), dns.rcode.BADVERS),
        (lambda q: q.question.__setitem__(0, dns.rrset.RRset(q.question[0].name, CH, A)), dns.rcode.REFUSED),
        (lambda q: q.question.__setitem__(0, dns.rrset.RRset(q.question[0].name, IN, AXFR)), dns.rcode.REFUSED),
    ],
)
async def test_unsupported_query_is_refused(
    answering: Answering, change: Callable[[dns.message.Message], None], rcode: dns.rcode.Rcode
) -> None:
    _, port = await answering()
    query = dns.message.make_query(WEB, "A")
    change(query)
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        udp.connect((HERE, port))
        udp.send(query.to_wire())
        loop = asyncio.get_running_loop()
        answer = dns.message.from_wire(await asyncio.wait_for(loop.sock_recv(udp, 4096), 5))
    assert (answer.id, answer.rcode()) == (query.id, rcode)


async def test_external_name_is_forwarded_once_and_cached_for_its_ttl(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1", ttl=60)) as other:
        server, port = await answering(other)
        answers = await asyncio.gather(*(send_query(port, "www.example.com", source=POD) for _ in range(20)))
        again = await send_query(port, "WWW.example.com")
        assert {tuple(rows(answer)) for answer in (*answers, again)} == {("192.0.2.1",)}
        assert other.questions == ["www.example.com. IN A"]
        assert 0 < again.answer[0].ttl <= 60
        assert again.flags & dns.flags.RA
        assert not again.flags & dns.flags.AA
        assert server.forwarded_count == 21


async def test_uncacheable_answer_is_forwarded_again(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1", ttl=0)) as other:
        _, port = await answering(other)
        await send_query(port, "www.example.com")
        await send_query(port, "www.example.com")
        assert len(other.questions) == 2
        assert len(set(other.ids)) == len(set(other.ports)) == 2, "nobody can guess either"


@pytest.mark.parametrize(("seconds", "times"), [(300, 1), (0, 2)])
async def test_negative_answer_is_cached(answering: Answering, seconds: int, times: int) -> None:
    async with Other(answer=denies(seconds)) as other:
        _, port = await answering(other)
        for _ in range(2):
            assert (await send_query(port, "nope.example.com")).rcode() == dns.rcode.NXDOMAIN
        assert len(other.questions) == times


async def test_truncated_upstream_answer_is_retried_over_tcp(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1", flags=dns.flags.TC), by_tcp=says("192.0.2.2")) as other:
        _, port = await answering(other)
        assert rows(await send_query(port, "www.example.com")) == ["192.0.2.2"]


@pytest.mark.parametrize("first", [fails, lambda _: None, lambda query: b"x" * 100])
async def test_failing_upstream_falls_back_to_the_next(
    answering: Answering, first: Callable[[dns.message.Message], dns.message.Message | bytes | None]
) -> None:
    async with Other(answer=first) as bad, Other(answer=says("192.0.2.1")) as good:
        _, port = await answering(bad, good)
        assert rows(await send_query(port, "www.example.com")) == ["192.0.2.1"]
        assert len(bad.questions) == 1


async def test_upstream_without_edns_is_queried_without_it(answering: Answering) -> None:
    def old(query: dns.message.Message) -> dns.message.Message:
        response = says("192.0.2.1")(query)
        if query.edns >= 0:
            response = dns.message.make_response(query)
            response.set_rcode(dns.rcode.FORMERR)
        return response

    async with Other(answer=old) as other:
        _, port = await answering(other)
        assert rows(await send_query(port, "www.example.com")) == ["192.0.2.1"]


async def test_unresponsive_upstream_is_tried_last_for_a_while(answering: Answering) -> None:
    async with Other() as silent, Other(answer=says("192.0.2.1")) as good:
        _, port = await answering(silent, good)
        await send_query(port, "a.example.com")
        await send_query(port, "b.example.com")
        assert (len(silent.questions), len(good.questions)) == (1, 2)


async def test_forged_upstream_answer_is_ignored(answering: Answering) -> None:
    def forged(query: dns.message.Message) -> dns.message.Message:
        response = says("192.0.2.66")(query)
        response.id ^= 1
        return response

    def other_name(requested: dns.message.Message) -> dns.message.Message:
        requested.question[0].name = dns.name.from_text("victim.example.com")
        return says("192.0.2.66")(requested)

    async with Other(answer=forged) as other, Other(answer=other_name) as two, Other(answer=says("192.0.2.1")) as three:
        _, port = await answering(other, two, three)
        assert rows(await send_query(port, "www.example.com")) == ["192.0.2.1"]


async def test_cname_chain_is_followed_to_its_end(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1")) as other:
        _, port = await answering(other)
        assert rows(await send_query(port, "docs.red.svc.cluster.local", source=POD)) == [
            "www.example.com.",
            "192.0.2.1",
        ]
        assert other.questions == ["www.example.com. IN A"]


async def test_missing_upstream_is_answered_servfail_at_once(answering: Answering) -> None:
    _, port = await answering()
    assert (await send_query(port, "www.example.com")).rcode() == dns.rcode.REFUSED
    assert rows(await send_query(port, "docs.red.svc.cluster.local")) == ["www.example.com."]


async def test_external_queries_without_recursion_or_from_strangers_are_not_forwarded(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1")) as other:
        _, port = await answering(other)
        assert (await send_query(port, "www.example.com", source="127.0.0.9")).rcode() == dns.rcode.REFUSED
        assert (await send_query(port, "www.example.com", flags=0)).rcode() == dns.rcode.REFUSED
        assert other.questions == []


async def test_cluster_names_are_never_forwarded(answering: Answering) -> None:
    async with Other(answer=says("192.0.2.1")) as other:
        _, port = await answering(other)
        for name, kind in (("nope.red.svc.cluster.local", "A"), ("9.9.30.172.in-addr.arpa", "PTR"), (WEB, "AAAA")):
            assert rows(await send_query(port, name, kind)) == []
        assert other.questions == []


async def test_forwarding_loop_ends(answering: Answering) -> None:
    """The upstream server forwards each query back to the server, and returns its answer."""
    query: list[asyncio.Task[dns.message.Message]] = []
    async with Other() as loop:
        _, port = await answering(loop)

        def back(message: dns.message.Message) -> None:
            query.append(asyncio.create_task(send_query(port, str(message.question[0].name))))

        loop.answer = back
        assert (await send_query(port, "www.example.com", source=POD)).rcode() == dns.rcode.SERVFAIL
        assert [(await response).rcode() for response in query] == [dns.rcode.SERVFAIL]


async def test_udp_flood_of_one_client_leaves_capacity_for_others(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No query is given up or repeated before the last one is answered, however busy the machine is.
    monkeypatch.setattr(forwarder, "UPSTREAM_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(forwarder, "TIMEOUT_SECONDS", 60.0)
    async with Other() as silent:
        server, port = await answering(silent)
        with socket.socket(type=socket.SOCK_DGRAM) as udp:
            udp.bind((POD, 0))
            for number in range(300):
                udp.sendto(dns.message.make_query(f"x{number}.example.com", "A").to_wire(), (HERE, port))
            assert rows(await send_query(port, WEB)) == ["172.30.0.5"]
            known = says("192.0.2.1")
            silent.answer = lambda query: known(query) if "www." in str(query.question[0]) else None
            assert rows(await send_query(port, "www.example.com")) == ["192.0.2.1"]
            async with asyncio.timeout(5):
                while server.query_count < 2 + 256:
                    await asyncio.sleep(0.01)
            assert server.forwarded_count == 101


async def test_flooding_client_does_not_delay_others(answering: Answering) -> None:
    """Questions that no cached answer matches wait in the socket, and behind them one of another client."""
    server, port = await answering()
    floods, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in range(2))
    with floods, other:
        for client, address in ((floods, POD), (other, OTHER)):
            client.bind((address, 0))
            client.connect((HERE, port))
        for number in range(1000):
            floods.send(dns.message.make_query(f"n{number}.red.svc.cluster.local", "A").to_wire())
        other.send(dns.message.make_query("n.blue.svc.cluster.local", "A").to_wire())
        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, 512), 5)
        before_the_other = server.query_count
        while server.query_count < before_the_other + 10:
            floods.send(dns.message.make_query("n.red.svc.cluster.local", "A").to_wire())
            await asyncio.sleep(0.01)
    assert before_the_other < 200


async def test_tcp_connections_of_one_project_leave_capacity_for_others(answering: Answering) -> None:
    server, port = await answering()
    server.update(names(directory()), lambda address: VNIDS["127.0.0.1"] if address == HERE else VNIDS[POD])
    held = [
        await asyncio.open_connection(HERE, port, local_addr=(f"127.0.1.{number % 9}", 0))
        for number in range(MAX_CONNECTIONS + 20)
    ]
    query = dns.message.make_query(WEB, "A")
    assert rows(await dns.asyncquery.tcp(query, HERE, 5, port)) == ["172.30.0.5"]
    for _, writer in held:
        writer.close()


async def test_address_in_use_is_reported(answering: Answering) -> None:
    _, port = await answering()
    with pytest.raises(NotReady, match=rf"127\.0\.0\.1:{port}"):
        await NameServer(names(ServiceStore()), lambda _: 0).start(HERE, port)


async def test_stopped_server_leaves_no_connection(answering: Answering) -> None:
    server, port = await answering()
    reader, writer = await asyncio.open_connection(HERE, port)
    wire = dns.message.make_query(WEB, "A").to_wire()
    writer.write(len(wire).to_bytes(2) + wire)
    assert await reader.readexactly(2)
    await server.stop()
    await reader.read()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HERE, port)
    writer.close()
