"""TCP probes, and the messages of failed connections. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl

from node_agent.probes.state import ProbeOutcome


async def connect(address: str, port: int, seconds: float) -> ProbeOutcome:
    """Open a connection and close it. The probe succeeds if the port accepts the connection."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return ProbeOutcome(False, f"dial tcp {address}:{port}: no answer within {seconds:g}s")
    except OSError as error:
        return ProbeOutcome(False, f"dial tcp {address}:{port}: {os_error_text(error)}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeOutcome(True)


def os_error_text(error: OSError) -> str:
    """Return the system's message of a failed connection, without the text that asyncio adds."""
    return os.strerror(error.errno) if error.errno and not isinstance(error, ssl.SSLError) else str(error)
