"""Exec and port forwarding: terminals, many parallel sessions, and the Python client."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.streaming.kubectl_sessions import (
    CLOSED_PORT,
    ECHO,
    GREETER,
    KUBECTL_VARIANTS,
    MEGABYTE,
    SUMS,
    Kubectl,
    Terminal,
    exchange,
    run_for_all,
    serving_pod_ports,
)
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: podlane/toolbox, command: [sleep, "100000"]}
  - {name: other, image: podlane/toolbox, command: [sleep, "100000"]}
"""


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """Create a pod of the project `into` with servers on ports of its own loopback."""
    cluster.kubectl("create", "namespace", "into")
    cluster.kubectl("-n", "into", "create", "-f", "-", stdin=POD.replace("NAME", "talker"))
    cluster.wait_running("into", "talker")
    (pid,) = cluster.docker(
        cluster.node_of("into", "talker"), "inspect", "-f", "{{.State.Pid}}", cluster.container("into", "talker")
    ).split()
    with serving_pod_ports(pid):
        yield "talker"
    cluster.kubectl("delete", "namespace", "into")


@pytest.fixture
def everyone(cluster: Cluster, tmp_path: Path) -> list[Kubectl]:
    return [Kubectl(cluster, program, websockets, tmp_path) for program, websockets in KUBECTL_VARIANTS]


def test_exec_terminal_follows_the_size_of_the_users_terminal(everyone: list[Kubectl], pod: str) -> None:
    run_for_all(everyone, lambda kubectl: _resized(kubectl, pod))


def _resized(kubectl: Kubectl, pod: str) -> None:
    terminal = Terminal(kubectl, "exec", "-it", pod, "-c", "main", "--", "sh")
    try:
        terminal.expect("# ")
        # Docker sets the size of a terminal after the program has started, and a shell may drop a line on that signal.
        terminal.type("stty size\n", until=r"\n30 100\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.type("stty size\n", until=r"\n40 120\r\n")
        terminal.type("exit 4\n")
        assert terminal.process.wait(DEADLINE_SECONDS) == 4
    finally:
        terminal.close()


def test_port_forward_carries_many_connections_to_many_ports(everyone: list[Kubectl], pod: str) -> None:
    run_for_all(everyone, lambda kubectl: asyncio.run(_forwarded(kubectl, pod)))


async def _forwarded(kubectl: Kubectl, pod: str) -> None:
    with kubectl.forwarding(pod, ECHO, GREETER, SUMS) as ports:
        wanted = [f"{number} ".encode() * 5000 for number in range(30)]
        assert await asyncio.gather(*(exchange(ports[ECHO], message) for message in wanted)) == wanted
        assert await exchange(ports[GREETER]) == b"hello\n", "the server closes first"
        digest = hashlib.sha256(MEGABYTE * 20).hexdigest()
        assert (await exchange(ports[SUMS], *[MEGABYTE] * 20)).decode() == digest


def test_exec_copies_stdin_to_stdout_unchanged(everyone: list[Kubectl], pod: str) -> None:
    run_for_all(everyone, lambda kubectl: _carried(kubectl, pod))


def _carried(kubectl: Kubectl, pod: str) -> None:
    data = MEGABYTE * 8
    assert kubectl.run("exec", "-i", pod, "-c", "main", "--", "cat", stdin=data) == data
    assert kubectl.run("exec", pod, "-c", "main", "--", "echo", "a" * 50_000) == b"a" * 50_000 + b"\n", "a long word"
    output = kubectl.run("exec", "-i", pod, "-c", "main", "--", "sha256sum", stdin=data)
    assert output.decode().split()[0] == hashlib.sha256(data).hexdigest()


def test_exec_program_ends_when_its_client_ends(everyone: list[Kubectl], pod: str, cluster: Cluster) -> None:
    run_for_all(everyone, lambda kubectl: _left(kubectl, pod, cluster, str(5000 + everyone.index(kubectl))))


def _left(kubectl: Kubectl, pod: str, cluster: Cluster, mark: str) -> None:
    words = [*kubectl.command, "exec", pod, "-c", "main", "--", "sleep", mark]
    with subprocess.Popen(words, env=kubectl.environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: f"sleep {mark}" in _programs(cluster), "it runs")
        process.kill()
    wait_until(lambda: f"sleep {mark}" not in _programs(cluster), "it is gone")


def test_exec_program_that_reads_nothing_ends_when_its_client_ends(
    everyone: list[Kubectl], pod: str, cluster: Cluster
) -> None:
    """Input fills all buffers on the way to the program, and the client is killed."""
    callers = []
    for mark, kubectl in zip(("6001", "6002"), everyone[-2:], strict=True):
        words = [*kubectl.command, "exec", "-i", pod, "-c", "main", "--", "sleep", mark]
        with open("/dev/zero", "rb") as zeros:
            callers.append(subprocess.Popen(words, env=kubectl.environment, stdin=zeros))
    wait_until(lambda: _programs(cluster).count("sleep 600") == 2, "they run")
    for caller in callers:
        wait_until(lambda caller=caller: _is_held_up(caller), "its input backs up")  # type: ignore[misc]
        caller.kill()
        caller.wait()
    wait_until(lambda: "sleep 600" not in _programs(cluster), "they are gone")


def _is_held_up(caller: subprocess.Popen[bytes]) -> bool:
    """Return whether a process no longer reads its input."""
    process = psutil.Process(caller.pid)
    before = process.io_counters().read_chars
    time.sleep(0.5)
    return before > 1 << 20 and process.io_counters().read_chars == before


def _programs(cluster: Cluster) -> str:
    return cluster.execute("into", "talker", "ps").stdout


# --- other clients ----------------------------------------------------------------------------------------------------


@pytest.fixture
def python_client(cluster: Cluster) -> Iterator[Any]:
    """Yield a Python client. It leaves sockets open, so they are closed before the next test."""
    from kubernetes import client, config

    with config.new_client_from_config(str(cluster.lab.kubeconfig)) as connection:
        yield client.CoreV1Api(connection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_python_client_runs_programs_in_a_pod(python_client: Any, pod: str) -> None:
    from kubernetes.stream import stream

    ask = python_client.connect_get_namespaced_pod_exec
    words = ["sh", "-c", "echo out; echo err >&2; read line; echo got $line; exit 5"]
    talk = stream(
        ask, pod, "into", container="main", command=words, stdin=True, stdout=True, stderr=True, tty=False,
        _preload_content=False,
    )  # fmt: skip
    talk.write_stdin("this\n")
    talk.run_forever(timeout=DEADLINE_SECONDS)
    assert (talk.read_stdout(), talk.read_stderr()) == ("out\ngot this\n", "err\n")
    assert talk.returncode == 5
    talk.close()


def test_python_client_forwards_ports_of_a_pod(python_client: Any, pod: str) -> None:
    from kubernetes.stream import portforward

    ports = f"{ECHO},{GREETER},{CLOSED_PORT}"
    forward = portforward(python_client.connect_get_namespaced_pod_portforward, pod, "into", ports=ports)
    echo, greeter = forward.socket(ECHO), forward.socket(GREETER)
    for sock in (echo, greeter):
        sock.setblocking(True)
    echo.sendall(b"there and back")
    assert echo.recv(100) == b"there and back"
    assert greeter.recv(100) == b"hello\n"
    assert forward.error(ECHO) is None
    wait_until(lambda: "connection refused" in (forward.error(CLOSED_PORT) or ""), "an error for the port of nobody")
    forward.close()


async def test_exec_runs_a_hundred_programs_at_once(cluster: Cluster, pod: str, tmp_path: Path) -> None:
    kubectl = Kubectl(cluster, *KUBECTL_VARIANTS[-1], tmp_path)
    data = MEGABYTE[: 64 << 10]

    async def run_cat() -> bool:
        process = await asyncio.create_subprocess_exec(
            *kubectl.command, "exec", "-i", pod, "-c", "main", "--", "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=kubectl.environment,
        )  # fmt: skip
        return (await process.communicate(data))[0] == data

    assert await asyncio.gather(*(run_cat() for _ in range(100))) == [True] * 100
