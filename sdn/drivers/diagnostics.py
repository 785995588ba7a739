"""Runs `ofproto/trace`, captures packets and sends ICMP echo requests. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import struct
import time
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType

from ovs.unixctl.client import UnixctlClient

from reconcile.errors import NotReady, Refused


class OvsAppctl:
    """The control socket of ovs-vswitchd, whose files are in `rundir`."""

    def __init__(self, rundir: Path) -> None:
        self._rundir = rundir

    async def trace(self, bridge: str, flow: str) -> str:
        """Return the output of `ofproto/trace` for a packet. Raises NotReady and Refused."""
        return await asyncio.to_thread(self._call, "ofproto/trace", bridge, flow)

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


_ECHO_REQUEST, _ECHO_REPLY = 8, 0


class IcmpEcho:
    """Sends ICMP echo requests from one address. Use as `async with IcmpEcho(gateway) as echo`."""

    def __init__(self, source: IPv4Address) -> None:
        self._source = source
        self._identifier = os.getpid() & 0xFFFF
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[float]] = {}
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> IcmpEcho:
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP)
            self._socket.setblocking(False)
            self._socket.bind((str(self._source), 0))
        except OSError as error:
            raise Refused(f"echo from {self._source}: {error.strerror}") from None
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    async def milliseconds(self, target: str, timeout_seconds: float) -> float | None:
        """Return the time until the reply; None if there is none in time."""
        if self._socket is None:
            raise RuntimeError("use the echo in `async with`")
        number = next(self._numbers) & 0xFFFF
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        try:
            self._socket.sendto(self._request(number), (target, 0))
            replied_at: float = await asyncio.wait_for(future, timeout_seconds)
            return (replied_at - begin) * 1000
        except (TimeoutError, OSError):
            return None
        finally:
            del self._pending[number]

    def _request(self, number: int) -> bytes:
        head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, self._identifier, number)
        total = sum(struct.unpack("!4H", head))
        total = (total & 0xFFFF) + (total >> 16)
        return struct.pack("!BBHHH", _ECHO_REQUEST, 0, ~total & 0xFFFF, self._identifier, number)

    def _receive(self) -> None:
        """Receive one packet, IP header included, and complete its request."""
        if self._socket is None:
            return
        data = self._socket.recv(2048)
        begin = (data[0] & 0x0F) * 4
        if len(data) < begin + 8:
            return
        kind, _, _, identifier, number = struct.unpack_from("!BBHHH", data, begin)
        future = self._pending.get(number)
        if kind == _ECHO_REPLY and identifier == self._identifier and future is not None and not future.done():
            future.set_result(time.perf_counter())
