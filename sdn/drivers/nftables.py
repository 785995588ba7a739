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
from sdn.model.host import BaseChain

_JSON, _TERSE = 1 << 4, 1 << 11
_NETFILTER = 12  # NETLINK_NETFILTER
_GET_GENERATION = 10 << 8 | 16  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN
_GENERATION_REQUEST = struct.pack("=IHHIIBBH", 20, _GET_GENERATION, 1, 0, 0, 0, 0, 0)
_MAX_OWN_GENERATIONS = 1024


def netfilter_socket(flags: int = 0) -> socket.socket:
    """Open a netlink socket to the kernel's netfilter, in the network namespace of this thread."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | flags, _NETFILTER)


def generation(kernel: socket.socket) -> int:
    """Return the generation of the ruleset, which every change increments. Needs a blocking socket."""
    kernel.send(_GENERATION_REQUEST)
    (number,) = struct.unpack(">I", kernel.recv(4096)[24:28])
    return int(number)


class Nftables:
    """The ruleset of the network namespace in which the object was created.

    The kernel gives every change of a ruleset a generation number. `own_generations` are those of our changes, except
    where a change by another program came in between. `last_generation` is the number after our last change.
    `on_idle` are called each time that no change of ours is in progress any more.
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
        self._changes_in_progress = 0
        self.last_generation = 0
        self.own_generations: deque[int] = deque(maxlen=_MAX_OWN_GENERATIONS)
        self.on_idle: list[Callable[[], None]] = []

    def close(self) -> None:
        """Close the socket and free the library's context."""
        self._kernel.close()
        self._library.nft_ctx_free(self._context)

    @property
    def is_idle(self) -> bool:
        """True if no change of ours is in progress."""
        return not self._changes_in_progress

    async def run(self, text: str) -> None:
        """Run all commands, or none. Raises Refused with nft's message."""
        self._changes_in_progress += 1
        try:
            await asyncio.to_thread(self._change, text)
        finally:
            self._changes_in_progress -= 1
            if self.is_idle:
                for callback in self.on_idle:
                    callback()

    async def list_table(self, family: str, table: str) -> str:
        """Return a table as nft prints it; empty if there is none."""
        try:
            return await asyncio.to_thread(self._run, f"list table {family} {table}", 0)
        except Refused:
            return ""

    async def list_chains(self, family: str, table: str) -> frozenset[str]:
        """Return the names of a table's chains; empty if there is no table."""
        try:
            listing = json.loads(await asyncio.to_thread(self._run, f"list table {family} {table}", _JSON))
        except Refused:
            return frozenset()
        return frozenset(entry["chain"]["name"] for entry in listing["nftables"] if "chain" in entry)

    async def list_base_chains(self) -> tuple[BaseChain, ...]:
        """Return the chains of all tables that the kernel calls by itself."""
        listing = json.loads(await asyncio.to_thread(self._run, "list chains", _JSON))
        chains = [entry["chain"] for entry in listing["nftables"] if "chain" in entry]
        return tuple(
            BaseChain(chain["family"], chain["table"], chain["name"], chain["hook"], chain.get("policy", "accept"))
            for chain in chains
            if "hook" in chain
        )

    async def list_chain(self, family: str, table: str, chain: str) -> str:
        """Return a chain as nft prints it; empty if there is none."""
        try:
            return await asyncio.to_thread(self._run, f"list chain {family} {table} {chain}", 0)
        except Refused:
            return ""

    async def list_sets(self, family: str, table: str) -> frozenset[str]:
        """Return the names of a table's sets and maps, without reading their elements; empty if there is no table."""
        names: set[str] = set()
        for kind in ("set", "map"):
            listing = json.loads(await asyncio.to_thread(self._run, f"list {kind}s {family}", _JSON | _TERSE))
            objects = [entry[kind] for entry in listing["nftables"] if kind in entry]
            names.update(obj["name"] for obj in objects if obj["table"] == table)
        return frozenset(names)

    def _change(self, text: str) -> None:
        with self._lock:
            before = generation(self._kernel)
            self._run_locked(text, 0)
            self.last_generation = generation(self._kernel)
            if self.last_generation == before + 1:
                self.own_generations.append(self.last_generation)

    def _run(self, text: str, flags: int) -> str:
        with self._lock:
            return self._run_locked(text, flags)

    def _run_locked(self, text: str, flags: int) -> str:
        self._library.nft_ctx_output_set_flags(self._context, ctypes.c_uint(flags))
        code = self._library.nft_run_cmd_from_buffer(self._context, ctypes.c_char_p(text.encode()))
        output = self._library.nft_ctx_get_output_buffer(self._context) or b""
        error = self._library.nft_ctx_get_error_buffer(self._context) or b""
        if code:
            message = " ".join(error.decode(errors="replace").split())
            raise Refused(f"nft refused {text.splitlines()[0]!r} and what follows: {message}; the ruleset is as it was")
        return str(output.decode(errors="replace"))


_SOL_NETLINK, _JOIN, _LEAVE = 270, 1, 2
_NFTABLES_GROUP = 7  # NFNLGRP_NFTABLES
_NEW_GENERATION = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN
_RECEIVE_BUFFER_BYTES = 1 << 20
_HEADER = struct.Struct("=IHHII4xHH")
"""nlmsghdr, nfgenmsg, and length and type of the first attribute.

The first attribute is the name of the table in all messages about nftables, except that it is the number in a message
about a new generation.
"""


class NftablesMonitor:
    """Watches tables for changes by other programs.

    After such a change `modified_externally` is True until the table has been rewritten within `suspended`, and
    `on_external_change` is called. Changes are told apart by their generation numbers. A change of ours that coincides
    with one of another program counts as a change of the other program.
    """

    def __init__(self, nft: Nftables, tables: tuple[str, ...], on_external_change: Callable[[], None]) -> None:
        self.modified_externally = False
        self._nft = nft
        self._names = frozenset(table.encode() + b"\0" for table in tables)
        self._on_external_change = on_external_change
        self._changes: list[int] = []
        self._is_watched_table = False
        self._kernel = netfilter_socket()
        self._socket = netfilter_socket(socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._socket.bind((0, 0))

    def open(self) -> None:
        """Start watching."""
        self._nft.on_idle.append(self._check)
        self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Stop watching."""
        self._nft.on_idle.remove(self._check)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._kernel.close()

    async def run(self) -> None:
        """Watch until cancelled."""
        self.open()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.close()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend change notifications while the table is rewritten.

        Changes by other programs before the rewrite are discarded; changes after it are reported.
        """
        self._socket.setsockopt(_SOL_NETLINK, _LEAVE, _NFTABLES_GROUP)
        try:
            yield
        finally:
            self._on_readable()
            self._changes.clear()
            self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
            self.modified_externally = False
            # Another change of ours may be in progress, so whose these changes are is known when none is.
            missed = range(self._nft.last_generation + 1, generation(self._kernel) + 1)
            self._changes.extend(missed[-_MAX_OWN_GENERATIONS:])
            if self._nft.is_idle:
                self._check()

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
                if self._is_watched_table:
                    self._changes.append(int.from_bytes(value, "big"))
                self._is_watched_table = False
            elif value in self._names:
                self._is_watched_table = True
            data = data[(length + 3) & ~3 :]

    def _check(self) -> None:
        foreign = [number for number in self._changes if number not in self._nft.own_generations]
        self._changes.clear()
        if foreign:
            self._mark_modified()

    def _mark_modified(self) -> None:
        self.modified_externally = True
        self._on_external_change()
