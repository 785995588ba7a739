"""Keeps the processes of a lab alive, as systemd would: what dies is started again a second later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

from lab import underlay
from lab.command import LabError
from lab.topology import Lab, LabNode, Process, Site, processes

RESTART_SECONDS = 1.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05


class Supervisor:
    """One lab's processes."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Start everything and keep it alive until told to stop; then stop it the other way round."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        tasks = [asyncio.create_task(self._keep(process)) for process in processes(self._lab)]
        await stop.wait()
        for task, process in reversed(list(zip(tasks, processes(self._lab), strict=True))):
            task.cancel()
            await self._stop(process.name)

    async def _keep(self, process: Process) -> None:
        while True:
            while not all(path.exists() for path in process.needs):
                await asyncio.sleep(POLL_SECONDS)
            running = await self._start(process)
            node = next((one for one in self._lab.nodes if process.name == f"{one.name} ovs-vswitchd"), None)
            if node is not None:
                await self._connect(node)
            code = await running.wait()
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
        self._running[process.name] = running
        process.pid_file.write_text(f"{running.pid}\n")
        return running

    async def _connect(self, node: LabNode) -> None:
        try:
            await asyncio.to_thread(underlay.connect, node, time.monotonic() + 30)
        except LabError as error:
            _say(f"{node.name}: {error}")

    async def _stop(self, name: str) -> None:
        running = self._running.get(name)
        if running is None or running.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            running.terminate()
        try:
            await asyncio.wait_for(running.wait(), STOP_SECONDS)
        except TimeoutError:
            running.kill()
            await running.wait()


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
