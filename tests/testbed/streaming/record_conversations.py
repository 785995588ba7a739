"""Records the bytes of real clients for the fuzzer: `python -m tests.testbed.streaming.record_conversations`.

A relay stands between each client and a pod that is this machine. It records the bytes towards the pod, in the pieces
in which they arrive.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kubernetes
import websocket
from kubernetes.stream import portforward, stream

from tests.testbed.kubectl import Kind, Kubectl
from tests.testbed.streaming.pod_server import running_pod_server

FOLDER = Path(__file__).parents[2] / "contract/streaming/conversations"
TALK = b"a line\nanother line\n" + bytes(range(256)) * 8


@asynccontextmanager
async def recording(url: str, name: str) -> AsyncIterator[str]:
    """Run a relay during the block and yield its address. The bytes of upgraded connections are recorded at the end."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    recorded: list[list[bytes]] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: list[bytes] = []
        recorded.append(chunks)
        there, back = await asyncio.open_connection(host, int(port))

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, keep: bool) -> None:
            try:
                while data := await source.read(1 << 16):
                    if keep:
                        chunks.append(data)
                    sink.write(data)
                    await sink.drain()
            except ConnectionError:
                pass
            sink.close()

        await asyncio.gather(carry(reader, back, True), carry(there, writer, False))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    [chunks] = [chunks for chunks in recorded if b"upgrade" in b"".join(chunks)[:4096].lower()]
    start = _start_of_upgrade(b"".join(chunks))
    actual = json.dumps([base64.b64encode(chunk).decode() for chunk in _without(chunks, start)], indent=0)
    (FOLDER / f"{name}.json").write_text(actual + "\n")


def _start_of_upgrade(sent: bytes) -> int:
    """Return the offset of the upgrade request. Clients send other requests on the same connection before it."""
    return (
        sent.lower().rfind(b"\r\n\r\n", 0, sent.lower().find(b"upgrade: ")) + 4
        if sent.lower().count(b"http/1.1") > 1
        else 0
    )


def _without(chunks: list[bytes], start: int) -> list[bytes]:
    left = []
    for chunk in chunks:
        if start < len(chunk):
            left.append(chunk[start:])
        start = max(0, start - len(chunk))
    return left


async def by_kubectl(url: str, kind: Kind, *words: str, given: bytes = TALK) -> None:
    with tempfile.TemporaryDirectory() as home:
        code, _, err = await Kubectl(kind, url, Path(home))(*words, given=given)
        assert code == 0, err


async def in_a_terminal(url: str, kind: Kind) -> None:
    ours, theirs = pty.openpty()
    with tempfile.TemporaryDirectory() as home:
        kubectl = Kubectl(kind, url, Path(home))
        words = kubectl.words("exec", "-it", "p", "--", "sh", "-c", "read x; stty size")
        program = await asyncio.create_subprocess_exec(
            *words, stdin=theirs, stdout=theirs, stderr=theirs, env=kubectl.environment, start_new_session=True
        )
        os.close(theirs)
        await asyncio.sleep(1)
        os.write(ours, b"go on\n")
        assert await program.wait() == 0
        os.close(ours)


async def forwarded(url: str, kind: Kind) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        with tempfile.TemporaryDirectory() as home:
            port = server.sockets[0].getsockname()[1]
            client = await Kubectl(kind, url, Path(home)).start("port-forward", "--address=127.0.0.1", "p", f":{port}")
            assert client.stdout is not None
            local = int((await client.stdout.readline()).split()[2].rpartition(b":")[2])
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", local)
                writer.write(TALK)
                assert await reader.readexactly(len(TALK)) == TALK
                writer.close()
                await writer.wait_closed()
            client.terminate()
            await client.wait()


def by_python(url: str, protocol: str) -> None:
    api = _api(url)
    if protocol:
        api.api_client.set_default_header("sec-websocket-protocol", protocol)
    talk = stream(
        api.connect_get_namespaced_pod_exec, "p", "default", command=["cat"], container="c",
        stdin=True, stdout=True, stderr=True, tty=False, _preload_content=False, binary=True,
    )  # fmt: skip
    for line in TALK.splitlines(keepends=True)[:20]:
        talk.write_stdin(line)
        talk.update(timeout=1)
    talk.close()


def ports_by_python(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        forward = portforward(_api(url).connect_get_namespaced_pod_portforward, "p", "default", ports=str(port))
        talk = forward.socket(port)
        peer, _ = server.accept()
        with peer:
            talk.sendall(TALK)
            peer.sendall(peer.recv(1 << 16))
            assert talk.recv(1)
        talk.close()


def in_base64(url: str) -> None:
    query = "command=cat&stdin=true&stdout=true&stderr=true&container=c"
    address = f"ws{url.removeprefix('http')}/api/v1/namespaces/default/pods/p/exec?{query}"
    talk = websocket.create_connection(address, subprotocols=["v4.base64.channel.k8s.io", "base64.channel.k8s.io"])
    for line in TALK.splitlines(keepends=True)[:20]:
        talk.send("0" + base64.b64encode(line).decode())
    talk.send("4" + base64.b64encode(b'{"Width":80,"Height":24}').decode())
    talk.recv()
    talk.close()


def _api(url: str) -> Any:
    configuration = kubernetes.client.Configuration(host=url)
    return kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))


async def main() -> None:
    """Write every conversation anew."""
    old, new = Kind("1.27", False), Kind("1.33", True)
    cat = ("exec", "-i", "p", "--", "cat")
    talks: dict[str, Callable[[str], Awaitable[None]]] = {
        "websocket-v5": lambda url: by_kubectl(url, new, *cat),
        "websocket-v5-terminal": lambda url: in_a_terminal(url, new),
        "websocket-v5-python": lambda url: asyncio.to_thread(by_python, url, ""),
        "websocket-v4": lambda url: asyncio.to_thread(by_python, url, "v4.channel.k8s.io"),
        "websocket-base64": lambda url: asyncio.to_thread(in_base64, url),
        "spdy-exec": lambda url: by_kubectl(url, old, *cat),
        "spdy-exec-terminal": lambda url: in_a_terminal(url, old),
        "spdy-ports": lambda url: forwarded(url, old),
        "tunnelled-ports": lambda url: forwarded(url, new),
        "websocket-ports": lambda url: asyncio.to_thread(ports_by_python, url),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, talk in talks.items():
        async with running_pod_server() as pod, recording(pod.url, name) as url:
            await talk(url)


if __name__ == "__main__":
    asyncio.run(main())
