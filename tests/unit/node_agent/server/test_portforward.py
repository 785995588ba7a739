"""Port-forward connections in memory: how each side ends; nothing stays open."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from node_agent.server import portforward
from node_agent.server.portforward import PortForwarder
from reconcile.errors import Refused
from streams.spdy.session import SpdyStream
from streams.stream import Stream


class FakeStream(Stream):
    """A stream of `chunks`, which then ends unless it is `quiet`. It records the calls."""

    def __init__(self, *chunks: bytes, quiet: bool = False, broken: bool = False) -> None:
        self.chunks = list(chunks)
        self.quiet, self.broken = quiet, broken
        self.written = b""
        self.ended = self.aborted = False
        self._woken = asyncio.Event()

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self.chunks:
            return self.chunks.pop(0)
        if self.broken:
            raise ConnectionResetError("lost")
        if self.quiet:
            await self._woken.wait()
            raise ConnectionResetError("aborted")
        return b""

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.aborted:
            raise ConnectionResetError("aborted")
        self.written += data

    async def end(self) -> None:
        await asyncio.sleep(0)
        self.ended = True

    def abort(self) -> None:
        self.aborted = True
        self._woken.set()


def forwarding(pod: FakeStream) -> PortForwarder:
    async def dial(_: int) -> Stream:
        return pod

    return PortForwarder(dial, "pod p")


async def finished(forwarder: PortForwarder) -> None:
    async with asyncio.timeout(5):
        await forwarder.wait(asyncio.Event())


async def test_port_forward_copies_both_ways_and_ends_both_sides() -> None:
    data, error, pod = FakeStream(b"question"), FakeStream(), FakeStream(b"answer")
    forwarder = forwarding(pod)
    forwarder.start(80, data, error, half_close=True)
    await finished(forwarder)
    assert (pod.written, pod.ended, data.written, data.ended) == (b"question", True, b"answer", True)
    assert (error.written, error.ended) == (b"", True)


async def test_port_forward_without_half_close_ends_when_the_program_ends() -> None:
    data, pod = FakeStream(quiet=True), FakeStream(b"answer")
    forwarder = forwarding(pod)
    forwarder.start(80, data, FakeStream(), half_close=False)
    await finished(forwarder)
    assert (data.written, pod.aborted) == (b"answer", True)


async def test_port_forward_aborts_when_the_program_aborts() -> None:
    data, error, pod = FakeStream(quiet=True), FakeStream(), FakeStream(b"part", broken=True)
    forwarder = forwarding(pod)
    forwarder.start(80, data, error, half_close=True)
    await finished(forwarder)
    assert (data.written, data.aborted, error.written, error.ended) == (b"part", True, b"", True)


async def test_port_forward_of_a_lost_client_aborts_an_idle_program() -> None:
    data, pod = FakeStream(b"question", broken=True), FakeStream(quiet=True)
    forwarder = forwarding(pod)
    forwarder.start(80, data, FakeStream(), half_close=True)
    await finished(forwarder)
    assert (pod.written, pod.aborted) == (b"question", True)


async def test_port_forward_delivers_output_after_the_programs_input_closed() -> None:
    class Deaf(FakeStream):
        async def write(self, data: bytes) -> None:
            raise BrokenPipeError

    data, pod = FakeStream(b"a", b"b", b"c"), Deaf(b"answer")
    forwarder = forwarding(pod)
    forwarder.start(80, data, FakeStream(), half_close=True)
    await finished(forwarder)
    assert (data.written, data.chunks) == (b"answer", [])


async def test_port_forward_reports_why_a_port_is_unreachable() -> None:
    async def dial(port: int) -> Stream:
        raise Refused(f"nobody listens on {port}")

    data, error, forwarder = FakeStream(quiet=True), FakeStream(), PortForwarder(dial, "pod p, uid u")
    forwarder.start(81, data, error, half_close=True)
    await finished(forwarder)
    assert error.written == b"error forwarding port 81 to pod p, uid u: nobody listens on 81"
    assert (error.ended, data.aborted) == (True, True)


async def test_port_forward_stop_ends_open_connections() -> None:
    data, pod = FakeStream(quiet=True), FakeStream(quiet=True)
    forwarder = forwarding(pod)
    forwarder.start(80, data, FakeStream(), half_close=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not pod.aborted
    async with asyncio.timeout(5):
        await forwarder.stop()
    assert (data.aborted, pod.aborted) == (True, True)


class OpenedStream(FakeStream):
    """A stream as a SPDY client opens it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.headers = {"streamtype": kind, "port": "80", "requestid": "1"}
        self.refused = False

    async def reply(self) -> None: ...

    def reset(self) -> None:
        self.refused = True


@pytest.mark.parametrize("has_both_streams", [True, False])
async def test_port_forward_abandons_only_incomplete_stream_pairs(
    has_both_streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portforward, "PAIR_TIMEOUT_SECONDS", 0.0)
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    forwarder = forwarding(FakeStream(b"answer"))
    pairs = portforward._StreamPairs(forwarder)
    streams = [OpenedStream(kind) for kind in (("error", "data") if has_both_streams else ("error",))]
    for stream in streams:
        await pairs.add(cast("SpdyStream", stream))
    for _ in range(5):
        await asyncio.sleep(0)
    await finished(forwarder)
    assert (contexts, [stream.refused for stream in streams]) == ([], [not has_both_streams] * len(streams))
    assert streams[-1].written == (b"answer" if has_both_streams else b"")


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("steps", range(24))
async def test_port_forward_stopped_at_any_point_leaves_nothing_open(steps: int, half_closes: bool) -> None:
    before = asyncio.all_tasks()
    data, pod = FakeStream(b"question", quiet=not half_closes), FakeStream(b"answer")
    forwarder = forwarding(pod)
    forwarder.start(80, data, FakeStream(), half_close=half_closes)
    for _ in range(steps):
        await asyncio.sleep(0)
    await forwarder.stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert pod.aborted or steps < 2
    assert asyncio.all_tasks() == before
