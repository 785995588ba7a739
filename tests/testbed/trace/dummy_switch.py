"""A real Open vSwitch in user space, without packets, in a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import Flow, FlowSet
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition

T = TypeVar("T")


SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


DEADLINE_SECONDS = 60.0


class DummySwitch:
    """One ovsdb-server and one ovs-vswitchd with a bridge br0; use as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="podlane-switch-")
        self.rundir = Path(self._folder.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._control: socket.socket | None = None

    def __enter__(self) -> DummySwitch:
        self._run("ovsdb-tool", "create", f"{self.rundir}/conf.db", SCHEMA)
        self._start("ovsdb-server", f"--remote=punix:{self.rundir}/db.sock", f"{self.rundir}/conf.db")
        self._wait_for("db.sock")
        self.start_vswitchd()
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def start_vswitchd(self) -> None:
        """Start ovs-vswitchd. Its state in memory is lost."""
        arguments = (f"unix:{self.rundir}/db.sock", "--enable-dummy=override", "--disable-system")
        self._start("ovs-vswitchd", *arguments)

    def kill_vswitchd(self) -> None:
        """Kill ovs-vswitchd by SIGKILL."""
        self._hang_up()
        process = self._processes.pop()
        process.kill()
        process.wait()
        (self.rundir / "br0.mgmt").unlink(missing_ok=True)

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def add_ports(self, ports: Mapping[str, int]) -> None:
        """Ports that lead nowhere, by name and OpenFlow number."""
        words: list[str] = []
        for name, number in ports.items():
            words += ["--", "add-port", "br0", name, "--", "set", "interface", name, "type=dummy"]
            words += [f"ofport_request={number}"]
        self.vsctl(*words[1:])

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl on this switch. It connects again while ovsdb-server does not listen on its socket yet."""
        return self._run(
            "ovs-vsctl", "--retry", f"--timeout={DEADLINE_SECONDS:.0f}", f"--db=unix:{self.rundir}/db.sock", *words
        )

    def ofctl(self, *words: str) -> str:
        """Run ovs-ofctl with OpenFlow 1.4."""
        return self._run("ovs-ofctl", "-O", "OpenFlow14", *words)

    def replace(self, flows: frozenset[Flow]) -> DiffCount:
        """Load flows through the driver that the daemon uses."""
        return asyncio.run(self._with_driver(lambda driver: driver.sync(Partition.NODE, FlowSet(flows))))

    def replace_services(self, flow_set: FlowSet) -> DiffCount:
        """Replace the flows and groups of services, and return the number of changes."""
        return asyncio.run(self._with_driver(lambda driver: driver.sync(Partition.SERVICE, flow_set)))

    def read(self) -> frozenset[Flow | UnknownFlow]:
        """Read flows back."""
        return asyncio.run(self._with_driver(lambda driver: driver.read()))

    async def _with_driver(self, act: Callable[[OpenFlowClient], Awaitable[T]]) -> T:
        driver = OpenFlowClient(self.rundir / "br0.mgmt", BRIDGE_LAYOUT, lambda: None)
        running = asyncio.create_task(driver.run())
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not driver.connected:
                    await asyncio.sleep(0.005)
                return await act(driver)
        finally:
            running.cancel()

    def trace(self, flow: str, frame: bytes) -> str:
        """Return the output of `ofproto/trace` for a frame."""
        if self._control is None:
            self._control = socket.socket(socket.AF_UNIX)
            self._control.connect(f"{self.rundir}/ovs-vswitchd.ctl")
        request = {"id": 0, "method": "ofproto/trace", "params": ["br0", flow, frame.hex()]}
        self._control.sendall(json.dumps(request).encode())
        reply = _json_object(self._control)
        assert reply["error"] is None, reply["error"]
        return str(reply["result"])

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment())
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _start(self, program: str, *arguments: str) -> None:
        control = f"--unixctl={self.rundir}/{program}.ctl"
        process = subprocess.Popen(
            [program, *arguments, control, "--no-chdir"],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.rundir))}

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (self.rundir / name).exists():
            assert time.monotonic() < deadline, f"{name} does not appear"
            time.sleep(0.005)


def _json_object(connection: socket.socket) -> dict[str, object]:
    """Return the next JSON-RPC reply. Replies follow each other without a separator.

    The JSON parser of the library `ovs` needs ten times as long for the output of a trace.
    """
    received = b""
    while True:
        part = connection.recv(1 << 16)
        assert part, "the switch has closed the connection"
        received += part
        with contextlib.suppress(ValueError):
            reply: dict[str, object] = json.loads(received)
            return reply
