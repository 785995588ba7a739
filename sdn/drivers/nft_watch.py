"""Hears from the kernel when somebody else has changed a table of ours."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Iterator

from sdn.drivers.nft import Nft, generation, netfilter_socket

_SOL_NETLINK, _JOIN, _LEAVE = 270, 1, 2
_NFTABLES_GROUP = 7  # NFNLGRP_NFTABLES
_NEW_GENERATION = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN
_ROOM_BYTES = 1 << 20
_HEADER = struct.Struct("=IHHII4xHH")
"""nlmsghdr, nfgenmsg, and the first attribute's: length and type. Of all messages about nftables the first attribute is
the name of the table; of a new generation it is its number."""


class NftWatch:
    """`on_touch` is called when one of the tables is no longer known to be as `nft` has left it. `is_touched` is set
    then, until `deaf` has been used to put it right.

    Changes are told apart by the number that the kernel gives to each. Changes of ours that collide with another
    program's in the same moment count as that program's.
    """

    def __init__(self, nft: Nft, tables: tuple[str, ...], on_touch: Callable[[], None]) -> None:
        self.is_touched = False
        self._nft = nft
        self._names = frozenset(table.encode() + b"\0" for table in tables)
        self._on_touch = on_touch
        self._changes: list[int] = []
        self._is_ours = False
        self._kernel = netfilter_socket()
        self._socket = netfilter_socket(socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
        self._socket.bind((0, 0))

    def open(self) -> None:
        """Begin to listen."""
        self._nft.when_idle.append(self._judge)
        self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def close(self) -> None:
        """Listen no more."""
        self._nft.when_idle.remove(self._judge)
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
    def deaf(self) -> Iterator[None]:
        """While the table is written anew: what others did to it before no longer matters, what they do to any table
        right afterwards does.
        """
        self._socket.setsockopt(_SOL_NETLINK, _LEAVE, _NFTABLES_GROUP)
        try:
            yield
        finally:
            self._hear()
            self._changes.clear()
            self._socket.setsockopt(_SOL_NETLINK, _JOIN, _NFTABLES_GROUP)
            self.is_touched = False
            if generation(self._kernel) != self._nft.latest:
                self._touch()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    self._read(self._socket.recv(1 << 16))
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    self._touch()
        if self._nft.is_idle:
            self._judge()

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

    def _judge(self) -> None:
        foreign = [number for number in self._changes if number not in self._nft.own]
        self._changes.clear()
        if foreign:
            self._touch()

    def _touch(self) -> None:
        self.is_touched = True
        self._on_touch()
