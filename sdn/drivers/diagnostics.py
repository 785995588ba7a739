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


SNAP_BYTES = 128


async def capture_packets(device: str, packets: int, seconds: float) -> bytes:
    """A pcap file with the heads of so many packets at most, taken within so many seconds. Raises Refused."""
    words = ("-i", device, "-c", str(packets), "-s", str(SNAP_BYTES), "-U", "-w", "-")
    try:
        process = await asyncio.create_subprocess_exec(
            "tcpdump", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise Refused("tcpdump is not installed on this node (apt install tcpdump)") from None
    talking = asyncio.create_task(process.communicate())
    await asyncio.wait({talking}, timeout=seconds)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    taken, said = await talking
    if not taken:
        raise Refused(f"tcpdump on {device}: {said.decode(errors='replace').strip()}")
    return taken


_ECHO_REQUEST, _ECHO_REPLY = 8, 0


class IcmpEcho:
    """Use as `async with Echo(gateway) as echo`; the questions leave with this address."""

    def __init__(self, source: IPv4Address) -> None:
        self._source = source
        self._identifier = os.getpid() & 0xFFFF
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[float]] = {}
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

    async def milliseconds(self, target: str, patience: float) -> float | None:
        """Time until the answer; None when there is none within `patience` seconds."""
        if self._socket is None:
            raise RuntimeError("use the echo in `async with`")
        number = next(self._numbers) & 0xFFFF
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        try:
            self._socket.sendto(self._question(number), (target, 0))
            answered: float = await asyncio.wait_for(future, patience)
            return (answered - begin) * 1000
        except (TimeoutError, OSError):
            return None
        finally:
            del self._waiting[number]

    def _question(self, number: int) -> bytes:
        head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, self._identifier, number)
        total = sum(struct.unpack("!4H", head))
        total = (total & 0xFFFF) + (total >> 16)
        return struct.pack("!BBHHH", _ECHO_REQUEST, 0, ~total & 0xFFFF, self._identifier, number)

    def _receive(self) -> None:
        """One answer; the IP header comes along."""
        if self._socket is None:
            return
        data = self._socket.recv(2048)
        begin = (data[0] & 0x0F) * 4
        if len(data) < begin + 8:
            return
        kind, _, _, identifier, number = struct.unpack_from("!BBHHH", data, begin)
        future = self._waiting.get(number)
        if kind == _ECHO_REPLY and identifier == self._identifier and future is not None and not future.done():
            future.set_result(time.perf_counter())
