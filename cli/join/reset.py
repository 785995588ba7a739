"""`podlane node reset`: makes this host leave its cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cli.command import UsageError
from cli.join import journal
from cli.join.command import JoinError, read_files
from cli.join.host import Host
from lab.process import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane node reset`."""
    parser.add_argument("--yes", action="store_true", help="remove them; without it, nothing is changed")


def reset_command(arguments: argparse.Namespace) -> int:
    """Leave the cluster. Returns the exit code. Raises UsageError, JoinError and HostError."""
    reset(Host(), Progress(), is_confirmed=arguments.yes)
    return 0


def reset(host: Host, progress: Callable[[str], None], *, is_confirmed: bool) -> None:
    """Remove what runs and is kept of a node. Commands, units and configuration stay.

    Raises UsageError if it is not confirmed, JoinError, HostError and BadSettings.
    """
    if not host.is_root():
        raise JoinError("this changes the host; run it as root")
    # Before the lock, which is a file: a host without the commands of a node stays as it is.
    host.require_reset()
    if not is_confirmed:
        raise UsageError(
            "this host would leave its cluster: the daemons stop, and its pods, network, state and identity are "
            "removed; --yes does it"
        )
    with host.exclusive():
        files = read_files(host)
        progress("stopping the daemons, and removing pods, network and state")
        host.reset()
        for name in (files.kubeconfig, files.bootstrap_kubeconfig, journal.FILE):
            host.remove(name)
        progress("this host is no node any more; on the master, `podlane node remove NAME` removes its Node")
