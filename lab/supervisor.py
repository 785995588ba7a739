"""Keeps the processes of a lab running, as systemd would: a process that ends is restarted after a second."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from ipaddress import IPv4Network
from typing import Never

import psutil

from lab import underlay
from lab.log_rotation import keep_bounded
from lab.process import LabError, log
from lab.relay import lab_endpoints
from lab.state import read_lab
from lab.topology import Lab, LabNode, Process, Site, processes

RESTART_SECONDS = 1.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
REAP_SECONDS = 1.0
CONNECT_SECONDS = 10.0
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Supervisor:
    """The processes of a lab. Their orphaned descendants, such as containers, become children of this process."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._started: set[int] = set()
        self._child_died = asyncio.Event()

    async def run(self) -> None:
        """Run all processes until SIGTERM or SIGINT; then stop them and all their descendants."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._child_died.set)
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            log("orphans will not be reaped: prctl is refused")
        run = self._processes()
        tasks = [asyncio.create_task(self._supervise(process)) for process in run]
        logs = [*(process.log_file for process in run), self._lab.root / "supervisor.log"]
        tasks += [asyncio.create_task(self._reap()), asyncio.create_task(keep_bounded(logs))]
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()

    def _processes(self) -> tuple[Process, ...]:
        return processes(self._lab, [str(endpoint) for endpoint in lab_endpoints(self._lab)])

    async def _supervise(self, process: Process) -> None:
        while True:
            while not all(path.exists() for path in process.needs):
                await asyncio.sleep(POLL_SECONDS)
            try:
                running = await self._start(process)
            except OSError as error:
                log(f"{process.name} does not start: {error}; trying again")
            else:
                code = await self._live(process, running)
                self._started.discard(running.pid)
                log(f"{process.name} ended with {code}; starting it again")
            await asyncio.sleep(RESTART_SECONDS)

    async def _live(self, process: Process, running: asyncio.subprocess.Process) -> int:
        """Wait until a process ends, and return its exit code. For a switch, configure its node meanwhile."""
        nodes = [node for node in self._lab.nodes if process.name == f"{node.name} ovs-vswitchd"]
        connecting = [asyncio.create_task(_connect(node)) for node in nodes]
        try:
            return await running.wait()
        finally:
            for task in connecting:
                task.cancel()

    async def _start(self, process: Process) -> asyncio.subprocess.Process:
        with process.log_file.open("ab") as log:
            running = await asyncio.create_subprocess_exec(
                *(() if process.namespace is None else ("nsenter", f"--net=/run/netns/{process.namespace}")),
                *process.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **dict(process.environment)},
                start_new_session=True,
            )
        self._started.add(running.pid)
        fresh = process.pid_file.with_suffix(".pid.new")
        fresh.write_text(f"{running.pid}\n")
        fresh.replace(process.pid_file)
        return running

    async def _reap(self) -> None:
        while True:
            await self._child_died.wait()
            await asyncio.sleep(REAP_SECONDS)
            self._child_died.clear()
            self._reap_orphans()

    def _reap_orphans(self) -> bool:
        """Reap dead orphans. Return True if any child is left.

        Processes that this program waits for itself are not reaped. Programs in its own session do not count.
        """
        left = False
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ProcessLookupError, ChildProcessError):
                if os.getsid(child.pid) == os.getsid(0):
                    continue
                left = True
                if child.pid not in self._started and child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)
        return left

    async def _end(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while self._reap_orphans() and time.monotonic() < deadline:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            await asyncio.sleep(POLL_SECONDS)


async def _connect(node: LabNode) -> None:
    """Configure the network of a node, and retry while its switch runs."""
    while True:
        try:
            await asyncio.to_thread(underlay.configure_node, node, time.monotonic() + CONNECT_SECONDS)
        except LabError as error:
            log(f"{node.name}: {error}")
            await asyncio.sleep(RESTART_SECONDS)
        else:
            return


def main() -> Never:
    """Run `python -m lab.supervisor PREFIX UNDERLAY`, which `podlane lab up` starts."""
    prefix, underlay_network = sys.argv[1:]
    lab = read_lab(Site(prefix, IPv4Network(underlay_network)))
    asyncio.new_event_loop().run_until_complete(Supervisor(lab).run())
    os._exit(0)  # a thread that waits for a switch would hold us for seconds


if __name__ == "__main__":
    main()
