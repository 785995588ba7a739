"""Asks the running switch what it would do, through its control socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ovs.unixctl.client import UnixctlClient

from reconcile.errors import NotReady, Refused


class Control:
    """The control socket of the ovs-vswitchd whose files are in `rundir`."""

    def __init__(self, rundir: Path) -> None:
        self._rundir = rundir

    async def trace(self, bridge: str, flow: str) -> str:
        """What would become of a packet, in the words of `ofproto/trace`. Raises NotReady and Refused."""
        return await asyncio.to_thread(self._call, "ofproto/trace", bridge, flow)

    def _call(self, command: str, *words: str) -> str:
        socket = self._socket()
        error, client = UnixctlClient.create(str(socket))
        if error:
            raise NotReady(f"{socket}: the switch does not answer")
        try:
            error, refusal, answer = client.transact(command, list(words))
        finally:
            client.close()
        if error:
            raise NotReady(f"{socket}: the switch has closed the connection")
        if refusal is not None:
            raise Refused(f"{command} {' '.join(words)}: {refusal.strip()}")
        return str(answer)

    def _socket(self) -> Path:
        """Named after the process, unless whoever started the switch gave it another name."""
        try:
            pid = int((self._rundir / "ovs-vswitchd.pid").read_text())
        except (OSError, ValueError):
            pid = 0
        own = self._rundir / f"ovs-vswitchd.{pid}.ctl"
        return own if own.exists() else self._rundir / "ovs-vswitchd.ctl"
