"""A cluster without Docker: master, switches and sdn daemons, each node in its namespace; pods are bare namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

import psutil

from api.certificates import node_kubeconfig
from api.client import Client, ClientError
from api.kubeconfig import BadKubeconfig, Kubeconfig
from api.objects import Namespace, Node, NodeAddress, NodeStatus, ObjectMeta
from lab import underlay
from lab.command import run
from lab.down import bring_down
from lab.topology import (
    MARK,
    OVS_SCHEMA,
    Lab,
    LabNode,
    Process,
    Site,
    daemon_processes,
    master_process,
    switch_processes,
)
from node_agent.drivers.network import PodNetwork
from reconcile.errors import NotReady

T = TypeVar("T")

SITE = Site("podbnch", IPv4Network("10.245.33.0/24"))
DEADLINE_SECONDS = 60.0
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread in another network namespace; sockets stay in the one in which they were opened."""
    home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if _LIBC.setns(there, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        yield
    finally:
        _LIBC.setns(home, NEW_NETWORK)
        os.close(home)
        os.close(there)


def wait_until(holds: Callable[[], T], what: str, pause: float = 0.02) -> T:
    """Look again and again until something is true, and return it. Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {DEADLINE_SECONDS:.0f} s")
        time.sleep(pause)
    return found


class BareCluster:
    """Use as a context manager. The first `with_sdn` of `size` nodes get an sdn daemon, the others only a switch."""

    def __init__(self, size: int, with_sdn: int, *master_flags: str) -> None:
        self._state = Path(f"/tmp/{SITE.prefix}-{os.getpid()}")
        self.lab = Lab(SITE, self._state, Path(sys.executable).parent, size, "ovs-multitenant")
        self._with_sdn = self.lab.nodes[:with_sdn]
        self._master_flags = master_flags
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> BareCluster:
        bring_down(self._state, SITE)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        for entry in list(Path("/run/netns").glob(f"{SITE.prefix}-pod-*")):
            run("ip", "netns", "del", entry.name)
        bring_down(self._state, SITE)
        shutil.rmtree(self._state, ignore_errors=True)

    def _build(self) -> None:
        self._state.mkdir()
        self.lab.root.symlink_to(self._state)
        (self.lab.root / "master").mkdir()
        underlay.make(self.lab)
        master = master_process(self.lab)
        self._start(replace(master, command=(*master.command, *self._master_flags)))
        for node in self.lab.nodes:
            self._start_switch(node)
        wait_until(self._master_answers, "the master")
        self.ask(self._register)
        for node in self._with_sdn:
            self.start_sdn(node)
            wait_until(lambda node=node: self.is_ready(node), f"{node.name}'s network")  # type: ignore[misc]

    def _start_switch(self, node: LabNode) -> None:
        node.ovs.mkdir(parents=True)
        (node.root / "log").mkdir()
        run("ovsdb-tool", "create", str(node.ovs / "conf.db"), OVS_SCHEMA)
        database, switch = switch_processes(node)
        self._start(database)
        wait_until((node.ovs / "db.sock").exists, "ovsdb-server")
        self._start(switch)
        underlay.connect(node, time.monotonic() + DEADLINE_SECONDS)

    def _start(self, process: Process) -> None:
        with process.log_file.open("ab") as log:
            self._running[process.name] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{process.namespace}", *process.command],
                env={**os.environ, **dict(process.environment), MARK: str(SITE.short)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_switch(self, node: LabNode) -> None:
        """SIGKILL a node's ovs-vswitchd."""
        process = self._running[f"{node.name} ovs-vswitchd"]
        process.kill()
        process.wait()
        (node.ovs / "br0.mgmt").unlink(missing_ok=True)

    def start_switch_again(self, node: LabNode) -> float:
        """Start it; when its bridge answered for the first time (steady clock)."""
        self._start(switch_processes(node)[1])
        wait_until((node.ovs / "br0.mgmt").exists, "br0", pause=0.001)
        answers = time.monotonic()
        underlay.connect(node, time.monotonic() + DEADLINE_SECONDS)
        return answers

    def start_sdn(self, node: LabNode) -> None:
        """Start a node's sdn daemon."""
        self._start(daemon_processes(self.lab, node)[0])

    def signal_sdn(self, node: LabNode, number: signal.Signals) -> None:
        """Send a signal to a node's sdn daemon; wait for its end if it is SIGKILL."""
        process = self._running[f"{node.name} sdn"]
        process.send_signal(number)
        if number is signal.SIGKILL:
            process.wait()

    def process(self, node: LabNode) -> psutil.Process:
        """A node's sdn daemon."""
        return psutil.Process(self._running[f"{node.name} sdn"].pid)

    def ask(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Do something as the administrator."""

        async def asking() -> T:
            async with Client(Kubeconfig.load(self.lab.kubeconfig)) as client:
                return await act(client)

        return asyncio.run(asking())

    def _master_answers(self) -> bool:
        try:
            return bool(self.ask(lambda client: client.get(Namespace, "default")))
        except (ClientError, BadKubeconfig):
            return False

    async def _register(self, client: Client) -> None:
        for node in self._with_sdn:
            text = await node_kubeconfig(client, Kubeconfig.load(self.lab.kubeconfig), node.name)
            node.kubeconfig.write_text(text)
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address=str(node.address)),))
            await client.create(Node(metadata=ObjectMeta(name=node.name), status=status))

    def is_ready(self, node: LabNode) -> bool:
        """Whether a node's sdn daemon says that pods can be attached."""

        async def asking() -> bool:
            async with PodNetwork(f"{node.root}/sdn.sock") as network:
                return (await network.status()).ready

        try:
            return asyncio.run(asking())
        except NotReady:
            return False

    def add_namespaces(self, names: list[str]) -> list[str]:
        """Network namespaces for pods; their full names."""
        full = [f"{SITE.prefix}-pod-{name}" for name in names]
        for name in full:
            run("ip", "netns", "add", name)
        return full
