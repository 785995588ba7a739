"""`kubectl exec` of every version, in each protocol that it speaks."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import signal
import struct
import termios
from pathlib import Path

import pytest

from tests.testbed.kubectl import Kubectl, few, kinds
from tests.testbed.streaming.fake_kubelet import until
from tests.testbed.streaming.pod_server import PodServer

KINDS = kinds(first_with_websockets="1.30")


@pytest.fixture(params=KINDS, ids=str)
def kubectl(request: pytest.FixtureRequest, one_pod: PodServer, tmp_path: Path) -> Kubectl:
    return Kubectl(request.param, one_pod.url, tmp_path)


def test_kubectl_versions_are_installed() -> None:
    assert len(KINDS) >= 11


async def test_kubectl_exec_returns_stdout_stderr_and_exit_code(kubectl: Kubectl, one_pod: PodServer) -> None:
    code, out, err = await kubectl("exec", "p", "--", "sh", "-c", "echo said; echo complained >&2; exit 3")
    assert (code, out) == (3, b"said\n")
    assert err.splitlines() == [b"complained", b"command terminated with exit code 3"]
    await until(lambda: bool(one_pod.protocols))  # which is noted when the answer has gone out
    assert one_pod.protocols == ["v5.channel.k8s.io" if kubectl.kind.websockets else "v4.channel.k8s.io"]


async def test_kubectl_exec_prints_nothing_on_success(kubectl: Kubectl) -> None:
    assert await kubectl("exec", "p", "--", "true") == (0, b"", b"")


async def test_kubectl_exec_stdin_ends_with_the_pipe(kubectl: Kubectl) -> None:
    data = os.urandom(3 << 20)
    digest = hashlib.sha256(data).hexdigest().encode()
    code, out, err = await kubectl("exec", "-i", "p", "--", "sha256sum", given=data)
    assert (code, out.split()[0], err) == (0, digest, b"")


async def test_kubectl_exec_terminal_follows_the_clients_size(kubectl: Kubectl) -> None:
    ours, theirs = pty.openpty()
    resized(ours, 31, 97)
    script = "stty -echo; stty size; while read x; do stty size; [ $x = q ] && exit 7; done"
    program = await asyncio.create_subprocess_exec(
        *kubectl.words("exec", "-it", "p", "--", "sh", "-c", script),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kubectl.environment,
        start_new_session=True,
    )
    os.close(theirs)
    output = b""
    async with asyncio.timeout(60):
        # A program may begin before its terminal has its first size.
        while b"31 97" not in output:
            os.write(ours, b"x\n")
            output += await from_terminal(ours)
        resized(ours, 41, 120)
        program.send_signal(signal.SIGWINCH)
        while b"41 120" not in output:
            os.write(ours, b"x\n")
            output += await from_terminal(ours)
        os.write(ours, b"q\n")
        assert await program.wait() == 7
    os.close(ours)


async def test_program_of_a_killed_kubectl_is_ended(kubectl: Kubectl, one_pod: PodServer) -> None:
    client = await kubectl.start("exec", "-i", "p", "--", "sh", "-c", "echo began; exec sleep 1000")
    assert client.stdout is not None
    assert await client.stdout.readline() == b"began\n"
    client.kill()
    await client.wait()
    async with asyncio.timeout(10):
        while one_pod.processes[0].program.returncode is None:
            await asyncio.sleep(0.01)
    assert one_pod.processes[0].left


@pytest.mark.parametrize("kubectl", few(KINDS), indirect=True, ids=str)
async def test_kubectl_exec_copies_64_megabytes_both_ways(kubectl: Kubectl) -> None:
    data = os.urandom(1 << 20) * 64
    code, out, err = await kubectl("exec", "-i", "p", "--", "cat", given=data)
    assert (code, err) == (0, b"")
    assert hashlib.sha256(out).digest() == hashlib.sha256(data).digest()


def resized(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


async def from_terminal(terminal: int) -> bytes:
    """Return the next output of a terminal; empty when its other end is closed."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, ready.set)
    try:
        await ready.wait()
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
    finally:
        loop.remove_reader(terminal)
