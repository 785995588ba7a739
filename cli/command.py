"""How commands of `podlane` are declared."""

from __future__ import annotations

import argparse
from collections.abc import Callable

ADMIN = "/var/lib/podlane/master/admin.kubeconfig"
"""The file in which a master keeps the administrator's kubeconfig."""


EXIT_CODES = {
    0: "done",
    1: "failed: a request was refused, a file cannot be read, no server answers",
    2: "wrong use: the arguments are not accepted",
    130: "interrupted by Ctrl-C",
}
"""What the exit codes of `podlane` mean."""


class UsageError(Exception):
    """The arguments of a command contradict each other; `str(error)` says what is accepted."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    act: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A command whose work is `act`, which returns the exit code."""
    parser = commands.add_parser(name, help=what, description=f"{what[:1].upper()}{what[1:]}.")
    parser.set_defaults(act=act)
    return parser
