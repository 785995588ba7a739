"""`podlane node reset`: makes this host leave its cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cli.join import journal
from cli.join.command import JoinError, read_files
from cli.join.host import Host
from lab.process import Progress


def reset_command(_: argparse.Namespace) -> int:
    """Leave the cluster. Returns the exit code. Raises JoinError and HostError."""
    reset(Host(), Progress())
    return 0


def reset(host: Host, progress: Callable[[str], None]) -> None:
    """Remove what runs and is kept of a node. Commands, units and configuration stay.

    Raises JoinError, HostError and BadSettings.
    """
    if not host.is_root():
        raise JoinError("this changes the host; run it as root")
    with host.exclusive():
        files = read_files(host)
        progress("stopping the daemons, and removing pods, network and state")
        host.reset()
        for name in (files.kubeconfig, files.bootstrap_kubeconfig, journal.FILE):
            host.remove(name)
        progress("this host is no node any more; on the master, `podlane node remove NAME` removes its Node")
