"""Processor time of other processes, with the resolution of the scheduler's clock. Driver.

/proc counts in hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import time

_LIBC = ctypes.CDLL(None)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process in seconds. Raises OSError."""
    clock = ctypes.c_int()
    if error := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error))
    return time.clock_gettime(clock.value)
