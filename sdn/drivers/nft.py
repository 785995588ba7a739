"""Runs nftables commands in one transaction, inside the process, through libnftables."""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading

from reconcile.errors import Refused

_JSON = 1 << 4


class Nft:
    """The ruleset of the network namespace in which it was made."""

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

    async def apply(self, text: str) -> None:
        """Run all commands or none. Raises Refused with nft's own words."""
        await asyncio.to_thread(self._run, text, 0)

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

    def _run(self, text: str, flags: int) -> str:
        with self._lock:
            self._library.nft_ctx_output_set_flags(self._context, ctypes.c_uint(flags))
            code = self._library.nft_run_cmd_from_buffer(self._context, ctypes.c_char_p(text.encode()))
            output = self._library.nft_ctx_get_output_buffer(self._context) or b""
            error = self._library.nft_ctx_get_error_buffer(self._context) or b""
        if code:
            words = " ".join(error.decode(errors="replace").split())
            raise Refused(f"nft refused {text.splitlines()[0]!r} and what follows: {words}; the ruleset is as it was")
        return str(output.decode(errors="replace"))
