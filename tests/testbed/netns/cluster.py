"""A cluster without Docker: master, switches and sdn daemons, one namespace per node and per pod."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from signal import Signals
from typing import Self

import psutil

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, ClientError
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.node import Namespace, Node, NodeAddress, NodeStatus
from api.meta.types import ObjectMeta
from lab import underlay
from lab.down import bring_down
from lab.process import run
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
from node_agent.network.sdn import SdnNetwork
from reconcile.errors import NotReady
from tests.testbed.wait import DEADLINE_SECONDS, T, wait_until

TURN_SECONDS = 900.0
LOG_LINES = 15


@contextlib.contextmanager
def _exclusive_site(site: Site) -> Iterator[None]:
    """Wait until no other run has a cluster of this prefix or this underlay. The kernel frees both with the process."""
    with contextlib.ExitStack() as stack:
        for name in (f"\0{site.prefix}-bare", f"\0podlane-underlay-{site.underlay}"):
            bound = stack.enter_context(socket.socket(socket.AF_UNIX))
            wait_until(partial(_binds, bound, name), f"the end of another cluster: {name[1:]}", TURN_SECONDS, pause=0.2)
        yield


def _binds(unix_socket: socket.socket, name: str) -> bool:
    """Bind a socket, and return False if another process has the name."""
    try:
        unix_socket.bind(name)
    except OSError:
        return False
    return True


NO_AGENT_FLAG = "--node-monitor-grace-seconds=86400"
"""No node agent renews a lease here. The master would declare the nodes unreachable, and their pods not ready."""


class NetnsCluster:
    """A cluster without node agents; a context manager.

    The first `with_sdn` nodes, or all, get an sdn daemon, the others a switch only. `nodes` are by name.
    """

    def __init__(self, lab: Lab, with_sdn: int | None = None, master_flags: tuple[str, ...] = ()) -> None:
        self.lab = lab
        self.nodes = {node.name: node for node in lab.nodes}
        self._with_sdn = lab.nodes[:with_sdn]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._resources = contextlib.ExitStack()
        self._open_client: tuple[asyncio.Runner, Client] | None = None
        master = master_process(lab)
        processes = [replace(master, command=(*master.command, NO_AGENT_FLAG, *master_flags))]
        for node in lab.nodes:
            processes += [*switch_processes(node), daemon_processes(lab, node)[0]]
        self._specifications = {process.name: process for process in processes}

    def __enter__(self) -> Self:
        self._resources.enter_context(_exclusive_site(self.lab.site))
        self._sweep()
        try:
            self._build()
        except BaseException as error:
            error.add_note(self._log_tails())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._sweep()
        shutil.rmtree(self.lab.state, ignore_errors=True)
        self._resources.close()

    def _log_tails(self) -> str:
        """Return the last lines of each process's log, for an error's report."""
        tails: list[str] = []
        for name, process in self._running.items():
            log_file = self._specifications[name].log_file
            lines = log_file.read_text(errors="replace").splitlines()[-LOG_LINES:] if log_file.exists() else []
            tails.append("\n  ".join((f"{name} (exit code {process.poll()}):", *lines)))
        return "\n".join(tails)

    def _sweep(self) -> None:
        """Remove everything of this cluster, including remains of a killed run."""
        for namespace in Path("/run/netns").glob(f"{self.pod_namespace('')}*"):
            run("ip", "netns", "del", namespace.name)
        bring_down(self.lab.state, self.lab.site)

    def _build(self) -> None:
        self.lab.state.mkdir()
        self.lab.root.symlink_to(self.lab.state)
        (self.lab.root / "master").mkdir()
        self.lab.master_settings.write_text("# The defaults.\n")
        underlay.make(self.lab)
        self._start_master()
        for node in self.lab.nodes:
            node.ovs.mkdir(parents=True)
            (node.root / "log").mkdir()
            run("ovsdb-tool", "create", str(node.ovs / "conf.db"), OVS_SCHEMA)
            self.start(f"{node.name} ovsdb-server")
            wait_until((node.ovs / "db.sock").exists, "ovsdb-server")
            self.start_switch(node.name)
        wait_until(self.master_answers, "the master")
        self.call_api(self._register)
        for node in self._with_sdn:
            self.start(f"{node.name} sdn")
        for node in self._with_sdn:
            wait_until(partial(self.network_ready, node.name), f"{node.name}'s network")

    def specification(self, name: str) -> Process:
        """Return how a process of this cluster is started."""
        return self._specifications[name]

    def start(self, name: str, instead: Process | None = None) -> None:
        """Start a process of this cluster by name, for example `node-1 sdn`, or another process in its place."""
        process = instead or self._specifications[name]
        with process.log_file.open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{process.namespace}", *process.command],
                env={**os.environ, **dict(process.environment), MARK: str(self.lab.site.run_dir)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_switch(self, node: str) -> float:
        """Start ovs-vswitchd and configure the node's address. Return the steady time when an existing br0 answered."""
        lab_node = self.nodes[node]
        had_bridge = (lab_node.ovs / "br0.mgmt").exists()
        (lab_node.ovs / "br0.mgmt").unlink(missing_ok=True)
        self.start(f"{node} ovs-vswitchd")
        if had_bridge:
            wait_until((lab_node.ovs / "br0.mgmt").exists, "br0", pause=0.001)
        answers = time.monotonic()
        underlay.configure_node(lab_node, time.monotonic() + DEADLINE_SECONDS)
        return answers

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal to a process of this cluster."""
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a process of this cluster by SIGKILL, and wait for its end."""
        self._running[name].kill()
        self._running[name].wait()

    def is_alive(self, name: str) -> bool:
        """Return whether a process of this cluster runs."""
        return self._running[name].poll() is None

    def is_running_as(self, name: str, word: str) -> bool:
        """Return whether a process runs with this word in its command."""
        return self.is_alive(name) and word in map(str, self._running[name].args)  # type: ignore[arg-type]

    def process(self, name: str) -> psutil.Process:
        """Return a process of this cluster, to measure it."""
        return psutil.Process(self._running[name].pid)

    def call_api(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Call a function with a client of the administrator, and return its result."""

        async def call() -> T:
            async with Client(Kubeconfig.load(self.lab.kubeconfig)) as client:
                return await act(client)

        return asyncio.run(call())

    def call_api_often(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Call a function as `call_api` does, over connections that stay open. The master must not be restarted."""

        async def call(client: Client) -> T:
            return await act(client)

        if self._open_client is None:
            runner = self._resources.enter_context(asyncio.Runner())
            opened = runner.run(Client(Kubeconfig.load(self.lab.kubeconfig)).__aenter__())
            self._resources.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
            self._open_client = runner, opened
        runner, client = self._open_client
        return runner.run(call(client))

    def master_answers(self) -> bool:
        """Return whether the master answers."""
        try:
            return bool(self.call_api(lambda client: client.get(Namespace, "default")))
        except (ClientError, BadKubeconfig):
            return False

    def _start_master(self) -> None:
        self.start("master")

    async def _join(self, client: Client, node: LabNode) -> None:
        """Write the kubeconfig of a node, with a new client certificate."""
        node.kubeconfig.write_text(await node_kubeconfig(client, Kubeconfig.load(self.lab.kubeconfig), node.name))

    async def _register(self, client: Client) -> None:
        for node in self._with_sdn:
            await self._join(client, node)
            status = NodeStatus(addresses=(NodeAddress(type="InternalIP", address=str(node.address)),))
            await client.create(Node(metadata=ObjectMeta(name=node.name), status=status))

    def call_cni_server(self, node: str, act: Callable[[SdnNetwork], Awaitable[T]]) -> T:
        """Call a function with a client of a node's sdn daemon, and return its result."""

        async def call() -> T:
            async with SdnNetwork(str(self.nodes[node].sdn_socket)) as network:
                return await act(network)

        return asyncio.run(call())

    def network_ready(self, node: str) -> bool:
        """Return whether the sdn daemon reports that pods can be attached."""
        try:
            return self.call_cni_server(node, lambda network: network.status()).ready
        except NotReady:
            return False

    def pod_namespace(self, name: str) -> str:
        """Return the name of a pod's network namespace."""
        return f"{self.lab.site.prefix}-pod-{name}"

    def add_namespaces(self, names: list[str]) -> list[str]:
        """Create network namespaces for pods, and return their full names."""
        namespaces = [self.pod_namespace(name) for name in names]
        for name in namespaces:
            run("ip", "netns", "add", name)
        return namespaces


def netns_lab(prefix: str, third_octet: int, size: int, plugin: str = "ovs-multitenant") -> Lab:
    """Return a lab whose names, addresses and state are in no other lab."""
    site = Site(prefix, IPv4Network(f"10.245.{third_octet}.0/24"))
    return Lab(site, Path(f"/tmp/{prefix}-{os.getpid()}"), Path(sys.executable).parent, size, plugin)


def bench_lab(size: int) -> Lab:
    """Return the lab of the benchmarks."""
    return netns_lab("podbnch", 33, size)
