"""Memory freed after a burst returns to the kernel, in a separate process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, ctypes, re
from pathlib import Path
from reconcile import daemon, malloc

malloc.TRIM_INTERVAL_SECONDS = 0.05
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def main():
    places = []
    for _ in range(1024):
        places.append(libc.malloc(65536))
        ctypes.memset(places[-1], 1, 65536)
    full = resident()
    for place in places[:-1]:
        libc.free(place)
    while resident() > full - 40:
        await asyncio.sleep(0.05)

raise SystemExit(daemon.run(main))
"""


def test_freed_memory_is_returned_to_the_kernel() -> None:
    """The last piece stays, so that the C library does not give back the others by itself."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
