"""Runs `ofproto/trace`, reads flows of the datapath, and captures packets. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from ovs.unixctl.client import UnixctlClient

from reconcile.errors import NotReady, Refused


class OvsAppctl:
    """The control socket of ovs-vswitchd, whose files are in `rundir`."""

    def __init__(self, rundir: Path) -> None:
        self._rundir = rundir

    async def trace(self, bridge: str, flow: str) -> str:
        """Return the output of `ofproto/trace` for a packet. Raises NotReady and Refused."""
        return await asyncio.to_thread(self._call, "ofproto/trace", bridge, flow)

    async def datapaths(self) -> str:
        """Return the output of `upcall/show`: datapaths and how many flows they have. Raises NotReady and Refused."""
        return await asyncio.to_thread(self._call, "upcall/show")

    async def datapath_flows(self, datapath: str) -> str:
        """Return the flows of a datapath. The switch does nothing else meanwhile. Raises NotReady and Refused."""
        return await asyncio.to_thread(self._call, "dpctl/dump-flows", "--names", datapath)

    def _call(self, command: str, *arguments: str) -> str:
        socket = self._socket()
        error, client = UnixctlClient.create(str(socket))
        if error:
            raise NotReady(f"{socket}: the switch does not answer")
        try:
            error, message, output = client.transact(command, list(arguments))
        finally:
            client.close()
        if error:
            raise NotReady(f"{socket}: the switch has closed the connection")
        if message is not None:
            raise Refused(f"{command} {' '.join(arguments)}: {message.strip()}")
        return str(output)

    def _socket(self) -> Path:
        """Return the path of the socket. Its name has the process id, unless it was configured."""
        try:
            pid = int((self._rundir / "ovs-vswitchd.pid").read_text())
        except (OSError, ValueError):
            pid = 0
        default = self._rundir / f"ovs-vswitchd.{pid}.ctl"
        return default if default.exists() else self._rundir / "ovs-vswitchd.ctl"


SNAP_BYTES = 128
"""Captured bytes of each packet."""


async def capture_packets(device: str, packets: int, seconds: float) -> bytes:
    """Capture the first bytes of at most `packets` packets within `seconds`. Return a pcap file. Raises Refused."""
    arguments = ("-i", device, "-c", str(packets), "-s", str(SNAP_BYTES), "-U", "-w", "-")
    try:
        process = await asyncio.create_subprocess_exec(
            "tcpdump", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise Refused("tcpdump is not installed on this node (apt install tcpdump)") from None
    output = asyncio.create_task(process.communicate())
    await asyncio.wait({output}, timeout=seconds)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    pcap, messages = await output
    if not pcap:
        raise Refused(f"tcpdump on {device}: {messages.decode(errors='replace').strip()}")
    return pcap
