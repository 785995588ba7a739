"""Runs nftables commands in one transaction, inside the process, through libnftables."""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

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


class Nft:
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
        self.latest = 0
        self.own: deque[int] = deque(maxlen=_REMEMBERED)
        self.when_idle: list[Callable[[], None]] = []

    def close(self) -> None:
        """Let go of the kernel."""
        self._kernel.close()
        self._library.nft_ctx_free(self._context)

    @property
    def is_idle(self) -> bool:
        """Whether no change of ours is under way; those in `when_idle` are called each time that becomes so."""
        return not self._at_work

    async def apply(self, text: str) -> None:
        """Run all commands or none. Raises Refused with nft's own words."""
        self._at_work += 1
        try:
            await asyncio.to_thread(self._change, text)
        finally:
            self._at_work -= 1
            if self.is_idle:
                for call in self.when_idle:
                    call()

    async def read(self, family: str, table: str) -> str:
        """A table as nft prints it; empty when there is none."""
        try:
            return await asyncio.to_thread(self._run, f"list table {family} {table}", 0)
        except Refused:
            return ""

    async def chains(self, family: str, table: str) -> frozenset[str]:
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
            self.latest = generation(self._kernel)
            if self.latest == before + 1:
                self.own.append(self.latest)

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
