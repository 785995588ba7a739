"""Keeps the processes of a lab alive, as systemd would: what dies is started again a second later."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

import psutil

from lab import underlay
from lab.command import LabError
from lab.topology import Lab, LabNode, Process, Site, processes

RESTART_SECONDS = 1.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
REAP_SECONDS = 1.0
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Supervisor:
    """One lab's processes. Orphans among their descendants, such as containers, become children of this process."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._started: set[int] = set()
        self._connecting = 0

    async def run(self) -> None:
        """Start everything and keep it alive until told to stop; then end it, and all that came from it."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            _say("orphans will not be reaped: prctl is refused")
        tasks = [asyncio.create_task(self._keep(process)) for process in processes(self._lab)]
        reaping = asyncio.create_task(self._reap())
        await stop.wait()
        for task in [*tasks, reaping]:
            task.cancel()
        await asyncio.gather(*tasks, reaping, return_exceptions=True)
        await self._end()

    async def _keep(self, process: Process) -> None:
        node = next((one for one in self._lab.nodes if process.name == f"{one.name} ovs-vswitchd"), None)
        while True:
            while not all(path.exists() for path in process.needs):
                await asyncio.sleep(POLL_SECONDS)
            try:
                running = await self._start(process)
            except OSError as error:
                _say(f"{process.name} does not start: {error}; trying again")
            else:
                if node is not None:
                    await self._connect(node)
                code = await running.wait()
                self._started.discard(running.pid)
                _say(f"{process.name} ended with {code}; starting it again")
            await asyncio.sleep(RESTART_SECONDS)

    async def _start(self, process: Process) -> asyncio.subprocess.Process:
        with process.log_file.open("ab") as log:
            running = await asyncio.create_subprocess_exec(
                "nsenter",
                f"--net=/run/netns/{process.namespace}",
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

    async def _connect(self, node: LabNode) -> None:
        self._connecting += 1
        try:
            await asyncio.to_thread(underlay.connect, node, time.monotonic() + 30)
        except LabError as error:
            _say(f"{node.name}: {error}")
        finally:
            self._connecting -= 1

    async def _reap(self) -> None:
        """Take leave of dead orphans; of what was started here, whoever has started it does."""
        while True:
            await asyncio.sleep(REAP_SECONDS)
            if not self._connecting:
                self._reap_orphans()

    def _reap_orphans(self) -> bool:
        """Whether any child, known or adopted, is left."""
        children = psutil.Process().children()
        for child in children:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if child.pid not in self._started and child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)
        return bool(children)

    async def _end(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while self._reap_orphans() and time.monotonic() < deadline:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            await asyncio.sleep(POLL_SECONDS)


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()


def main() -> int:
    """`python -m lab.supervisor PREFIX UNDERLAY NODES PLUGIN`, started by `podlane lab up`."""
    prefix, underlay_network, size, plugin = sys.argv[1:]
    site = Site(prefix, IPv4Network(underlay_network))
    lab = Lab(site, site.short.resolve(), Path(sys.executable).parent, int(size), plugin)
    asyncio.run(Supervisor(lab).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
