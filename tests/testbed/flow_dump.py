"""Flows of a bridge as text."""

from __future__ import annotations

from lab.process import run


def daemon_flows(management_socket: str) -> list[str]:
    """Return the flows that the sdn daemon has written, without counters, as ovs-ofctl prints them, sorted.

    Those that the switch has learned are left out, because they expire.
    """
    dump = run("ovs-ofctl", "-O", "OpenFlow14", "--no-stats", "dump-flows", management_socket)
    return sorted(
        line for line in map(str.strip, dump.splitlines()) if "timeout=" not in line.partition(" actions=")[0]
    )
