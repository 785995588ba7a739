"""Runs `ofproto/trace`, reads flows of the datapath, and captures packets. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import msgspec

from reconcile.errors import NotReady, Refused

ANSWER_SECONDS, MAX_ANSWER_BYTES = 30.0, 16 << 20


class _Answer(msgspec.Struct):
    """A response of JSON-RPC."""

    result: str | None = None
    error: str | None = None


async def _exchange(path: Path, request: bytes) -> _Answer:
    """Send a request, and return the response. It has no length: it is complete when it can be decoded."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(request)
        received = bytearray()
        while chunk := await reader.read(1 << 16):
            received += chunk
            if len(received) > MAX_ANSWER_BYTES:
                raise Refused(f"{path}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
            if received.endswith(b"}"):
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.json.decode(received, type=_Answer)
        raise NotReady(f"{path}: the switch has closed the connection")
    finally:
        writer.transport.abort()


class OvsAppctl:
    """The control socket of ovs-vswitchd, whose files are in `rundir`."""

    def __init__(self, rundir: Path) -> None:
        self._rundir = rundir

    async def trace(self, bridge: str, flow: str) -> str:
        """Return the output of `ofproto/trace` for a packet. Raises NotReady and Refused."""
        return await self._call("ofproto/trace", bridge, flow)

    async def datapaths(self) -> str:
        """Return the output of `upcall/show`: datapaths and how many flows they have. Raises NotReady and Refused."""
        return await self._call("upcall/show")

    async def datapath_flows(self, datapath: str) -> str:
        """Return the flows of a datapath. The switch does nothing else meanwhile. Raises NotReady and Refused."""
        return await self._call("dpctl/dump-flows", "--names", datapath)

    async def _call(self, command: str, *arguments: str) -> str:
        """Send one request of JSON-RPC, and return its result.

        The client of python-ovs is not used: it takes 45 s, 5 s of them of the processor, for half a megabyte.
        """
        path = self._socket()
        request = msgspec.json.encode({"id": 0, "method": command, "params": arguments})
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await _exchange(path, request)
        except (OSError, TimeoutError):
            raise NotReady(f"{path}: the switch does not answer") from None
        if answer.error is not None:
            raise Refused(f"{command} {' '.join(arguments)}: {answer.error.strip()}")
        return answer.result or ""

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
