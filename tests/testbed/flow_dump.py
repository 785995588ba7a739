"""Flows of a bridge as text."""

from __future__ import annotations

from lab.process import run
from sdn.pipeline.tables import LEARNED_TABLES

_LEARNED = tuple(f"table={table}," for table in LEARNED_TABLES)


def daemon_flows(management_socket: str) -> list[str]:
    """Return the flows that the sdn daemon has written, without counters, as ovs-ofctl prints them, sorted.

    Flows that the switch has learned come and go with traffic.
    """
    dump = run("ovs-ofctl", "-O", "OpenFlow14", "--no-stats", "dump-flows", management_socket)
    return sorted(line for line in map(str.strip, dump.splitlines()) if not any(table in line for table in _LEARNED))
