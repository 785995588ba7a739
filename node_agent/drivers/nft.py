"""Runs nftables commands in one transaction, through `nft -f -`."""

from __future__ import annotations

import asyncio

from reconcile.errors import NotReady, Refused


async def apply(text: str) -> None:
    """Run all commands or none. Raises Refused with nft's own words, NotReady where there is no nft."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nft",
            "-f",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotReady(f"nft cannot be run: {error}") from None
    _, said = await process.communicate(text.encode())
    if process.returncode:
        words = " ".join(said.decode(errors="replace").split())
        raise Refused(f"nft -f - (exit {process.returncode}): {words}; the table is as it was")
