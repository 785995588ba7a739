"""Runs nftables commands in one transaction through libnftables, and watches for changes by other programs. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator

from reconcile.errors import Refused

_JSON = 1 << 4
_NETFILTER = 12  # NETLINK_NETFILTER
_GET_GENERATION = 10 << 8 | 16  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN
_QUESTION = struct.pack("=IHHIIBBH", 20, _GET_GENERATION, 1, 0, 0, 0, 0, 0)
_REMEMBERED = 1024


def netfilter_socket(flags: int = 0) -> socket.socket:
    """A way to the kernel's netfilter, in the network namespace of this thread."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | flags, _NETFILTER)


def generation(kernel: socket.socket) -> int:
    """How often the ruleset has been changed, asked through a socket that waits."""
    kernel.send(_QUESTION)
    (number,) = struct.unpack(">I", kernel.recv(4096)[24:28])
    return int(number)


class Nftables:
    """The ruleset of the network namespace in which it was made.

    The kernel counts the changes of a ruleset: `own` are the numbers of ours, as far as nobody else came between;
    `latest` is how many there were when our last one had been made.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL("libnftables.so.1")
        library.nft_ctx_new.restype = ctypes.c_void_p
        library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
        library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
        self._library = library
        self._context = ctypes.c_void_p(library.nft_ctx_new(0))
        library.nft_ctx_buffer_output(self._context)
        library.nft_ctx_buffer_error(self._context)
        self._lock = threading.Lock()
        self._kernel = netfilter_socket()
        self._at_work = 0
        self.last_generation = 0
        self.own_generations: deque[int] = deque(maxlen=_REMEMBERED)
        self.on_idle: list[Callable[[], None]] = []

    def close(self) -> None:
        """Let go of the kernel."""
        self._kernel.close()
        self._library.nft_ctx_free(self._context)

    @property
    def is_idle(self) -> bool:
        """Whether no change of ours is under way; those in `when_idle` are called each time that becomes so."""
        return not self._at_work

    async def run(self, text: str) -> None:
        """Run all commands or none. Raises Refused with nft's own words."""
        self._at_work += 1
        try:
            await asyncio.to_thread(self._change, text)
        finally:
            self._at_work -= 1
            if self.is_idle:
                for call in self.on_idle:
                    call()

    async def list_table(self, family: str, table: str) -> str:
        """A table as nft prints it; empty when there is none."""
        try:
            return await asyncio.to_thread(self._run, f"list table {family} {table}", 0)
        except Refused:
            return ""

    async def list_chains(self, family: str, table: str) -> frozenset[str]:
        """The names of a table's chains; empty when there is no table."""
        try:
            answer = json.loads(await asyncio.to_thread(self._run, f"list table {family} {table}", _JSON))
        except Refused:
            return frozenset()
        return frozenset(item["chain"]["name"] for item in answer["nftables"] if "chain" in item)

    def _change(self, text: str) -> None:
        with self._lock:
            before = generation(self._kernel)
            self._run_alone(text, 0)
            self.last_generation = generation(self._kernel)
            if self.last_generation == before + 1:
                self.own_generations.append(self.last_generation)

    def _run(self, text: str, flags: int) -> str:
        with self._lock:
            return self._run_alone(text, flags)

    def _run_alone(self, text: str, flags: int) -> str:
        self._library.nft_ctx_output_set_flags(self._context, ctypes.c_uint(flags))
        code = self._library.nft_run_cmd_from_buffer(self._context, ctypes.c_char_p(text.encode()))
        output = self._library.nft_ctx_get_output_buffer(self._context) or b""
        error = self._library.nft_ctx_get_error_buffer(self._context) or b""
        if code:
            words = " ".join(error.decode(errors="replace").split())
            raise Refused(f"nft refused {text.splitlines()[0]!r} and what follows: {words}; the ruleset is as it was")
        return str(output.decode(errors="replace"))


_SOL_NETLINK, _JOIN, _LEAVE = 270, 1, 2
_NFTABLES_GROUP = 7  # NFNLGRP_NFTABLES
_NEW_GENERATION = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN
_ROOM_BYTES = 1 << 20
_HEADER = struct.Struct("=IHHII4xHH")
"""nlmsghdr, nfgenmsg, and the first attribute's: length and type. Of all messages about nftables the first attribute is
the name of the table; of a new generation it is its number."""


class NftablesMonitor:
    """`on_touch` is called when one of the tables is no longer known to be as `nft` has left it. `is_touched` is set
    then, until `deaf` has been used to put it right.

    Changes are told apart by the number that the kernel gives to each. Changes of ours that collide with another
    program's in the same moment count as that program's.
    """

    def __init__(self, nft: Nftables, tables: tuple[str, ...], on_external_change: Callable[[], None]) -> None:
        self.modified_externally = False
        self._nft = nft
        self._names = frozenset(table.encode() + b"\0" for table in tables)
        self._on_external_change = on_external_change
        self._changes: list[int] = []
        self._is_ours = False
        self._kernel = netfilter_socket()
        self._socket = netfilter_socket(socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
        self._socket.bind((0, 0))

    def open(self) -> None:
        """Begin to listen."""
        self._nft.on_idle.append(self._check)
        self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Listen no more."""
        self._nft.on_idle.remove(self._check)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._kernel.close()

    async def run(self) -> None:
        """Listen until cancelled."""
        self.open()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.close()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """While the table is written anew: what others did to it before no longer matters, what they do to any table
        right afterwards does.
        """
        self._socket.setsockopt(_SOL_NETLINK, _LEAVE, _NFTABLES_GROUP)
        try:
            yield
        finally:
            self._on_readable()
            self._changes.clear()
            self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
            self.modified_externally = False
            if generation(self._kernel) != self._nft.last_generation:
                self._mark_modified()

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    self._read(self._socket.recv(1 << 16))
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    self._mark_modified()
        if self._nft.is_idle:
            self._check()

    def _read(self, data: bytes) -> None:
        while len(data) >= _HEADER.size:
            length, kind, _, _, _, attribute, _ = _HEADER.unpack_from(data)
            value = data[_HEADER.size : 20 + attribute]
            if kind == _NEW_GENERATION:
                if self._is_ours:
                    self._changes.append(int.from_bytes(value, "big"))
                self._is_ours = False
            elif value in self._names:
                self._is_ours = True
            data = data[(length + 3) & ~3 :]

    def _check(self) -> None:
        foreign = [number for number in self._changes if number not in self._nft.own_generations]
        self._changes.clear()
        if foreign:
            self._mark_modified()

    def _mark_modified(self) -> None:
        self.modified_externally = True
        self._on_external_change()
