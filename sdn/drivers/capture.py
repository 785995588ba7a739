"""Writes down what goes over a link, with tcpdump."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from reconcile.errors import Refused

SNAP_BYTES = 128


async def capture(device: str, packets: int, seconds: float) -> bytes:
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
