"""Exec and port forwarding by the Kubernetes client for Python."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import os
import socket
from collections.abc import Callable
from typing import Any

import kubernetes
import pytest
import websocket
from kubernetes.stream import portforward, stream

from tests.testbed.streaming.pod_server import PodServer

V4 = "v4.channel.k8s.io"

# This client leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


def api(url: str, protocol: str = "") -> Any:
    actual = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(kubernetes.client.Configuration(host=url)))
    if protocol:
        actual.api_client.set_default_header("sec-websocket-protocol", protocol)
    return actual


def command(url: str, *words: str, protocol: str = "", **flags: object) -> Any:
    wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "_preload_content": False, **flags}
    return stream(
        api(url, protocol).connect_get_namespaced_pod_exec, "p", "default", command=[*words], container="c", **wanted
    )


@pytest.mark.parametrize("protocol", ["", V4], ids=["v5", "v4"])
async def test_python_client_exec_returns_stdout_stderr_and_exit_code(one_pod: PodServer, protocol: str) -> None:
    def work() -> tuple[str, str, int]:
        talk = command(one_pod.url, "sh", "-c", "echo said; echo complained >&2; exit 3", protocol=protocol)
        talk.run_forever(timeout=20)
        actual = talk.read_channel(1), talk.read_channel(2), talk.returncode
        talk.close()
        return actual

    assert await asyncio.to_thread(work) == ("said\n", "complained\n", 3)
    await until(lambda: one_pod.protocols == [protocol or "v5.channel.k8s.io"])


async def test_python_client_stdin_ends_by_the_v5_close_signal(one_pod: PodServer) -> None:
    data = os.urandom(5 << 20)

    def work() -> bytes:
        talk = command(one_pod.url, "sha256sum", stdin=True, binary=True)
        talk.write_stdin(data)
        talk.close_channel(0)
        talk.run_forever(timeout=20)
        assert talk.returncode == 0
        actual: bytes = talk.read_all()
        talk.close()
        return actual

    assert (await asyncio.to_thread(work)).split()[0] == hashlib.sha256(data).hexdigest().encode()


async def test_python_client_stdin_ends_by_disconnecting_before_v5(one_pod: PodServer, tmp_path: Any) -> None:
    data, target = os.urandom(5 << 20), tmp_path / "written"

    def work() -> None:
        talk = command(one_pod.url, "dd", f"of={target}", "bs=64k", stdin=True, binary=True, protocol=V4)
        talk.write_stdin(data)
        talk.close()

    await asyncio.to_thread(work)
    await until(lambda: any(process.program.returncode is not None for process in one_pod.processes))
    assert target.read_bytes() == data


async def test_python_client_copies_unicode_text(one_pod: PodServer) -> None:
    def work() -> str:
        talk = command(one_pod.url, "head", "-n1", stdin=True)
        talk.write_stdin("grün\n")
        talk.run_forever(timeout=20)
        actual: str = talk.read_all()
        talk.close()
        return actual

    assert await asyncio.to_thread(work) == "grün\n"


async def test_python_client_reads_16_megabytes(one_pod: PodServer) -> None:
    def work() -> int:
        talk = command(one_pod.url, "head", "-c", str(16 << 20), "/dev/zero", binary=True)
        size = 0
        while talk.is_open():
            talk.update(timeout=20)
            size += len(talk.read_channel(1))
        assert talk.returncode == 0
        talk.close()
        return size

    assert await asyncio.to_thread(work) == 16 << 20


@pytest.mark.parametrize("protocol", ["base64.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_python_client_base64_channel_protocol_works(one_pod: PodServer, protocol: str) -> None:
    def work() -> list[bytes]:
        query = "command=sh&command=-c&command=read+x;echo+$x;exit+4&stdin=true&stdout=true&container=c"
        address = f"ws{one_pod.url.removeprefix('http')}/api/v1/namespaces/default/pods/p/exec?{query}"
        talk = websocket.create_connection(address, subprotocols=[protocol], timeout=20)
        talk.send("0" + base64.b64encode(b"hello\n").decode())
        output = []
        while True:
            code, data = talk.recv_data()
            if code != websocket.ABNF.OPCODE_TEXT:
                assert (code, data) == (websocket.ABNF.OPCODE_CLOSE, b"\x03\xe8")
                break
            output.append(data[:1] + b" " + base64.b64decode(data[1:]))
        talk.close()
        return output

    *said, end = await asyncio.to_thread(work)
    assert said == [b"1 ", b"1 hello\n"]
    words = b"command terminated with non-zero exit code: exit status 4"
    if protocol.startswith("v4"):
        details = b'"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"4"}]}'
        assert end == b'3 {"metadata":{},"status":"Failure","message":"' + words + b'",' + details + b"}"
    else:
        assert end == b"3 " + words


async def test_python_client_forwards_ports(one_pod: PodServer) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"page" * 10_000)
        await writer.drain()
        writer.close()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    def work(first_port: int, other: int) -> None:
        ports = portforward(
            api(one_pod.url).connect_get_namespaced_pod_portforward, "p", "default", ports=f"{first_port},{other}"
        )
        talk = ports.socket(other)
        talk.settimeout(20)
        for _ in range(
            20
        ):  # One thread of the client both sends and receives: what is under way must fit into buffers.
            talk.sendall(b"x" * 50_000)
            left = 50_000
            while left:
                left -= len(talk.recv(left))
        asking = http.client.HTTPConnection("p", timeout=20)
        asking.sock = ports.socket(first_port)
        asking.request("GET", "/")
        assert ports.error(first_port) is None
        answer = asking.getresponse()
        assert answer.read(40_000) == b"page" * 10_000
        ports.close()

    page_server, other = [await asyncio.start_server(serve, "127.0.0.1", 0) for serve in (page, echo)]
    async with page_server, other:
        await asyncio.to_thread(work, *(server.sockets[0].getsockname()[1] for server in (page_server, other)))
        await until(lambda: one_pod.protocols == [V4])


async def test_python_client_port_forward_ends_when_the_program_closes(one_pod: PodServer) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    def work(port: int) -> bytes:
        ports = portforward(api(one_pod.url).connect_get_namespaced_pod_portforward, "p", "default", ports=str(port))
        talk = ports.socket(port)
        talk.settimeout(20)
        output = b""
        while piece := talk.recv(100):
            output += piece
        ports.close()
        return output

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        assert await asyncio.to_thread(work, server.sockets[0].getsockname()[1]) == b"hello"


async def test_python_client_reports_why_a_port_is_not_forwarded(one_pod: PodServer) -> None:
    def work(port: int) -> str:
        ports = portforward(api(one_pod.url).connect_get_namespaced_pod_portforward, "p", "default", ports=str(port))
        talk = ports.socket(port)
        talk.settimeout(20)
        assert talk.recv(1) == b""
        words: str = ports.error(port)
        ports.close()
        return words

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert (await asyncio.to_thread(work, port)).startswith(f"error forwarding port {port} to pod p, uid u: ")
