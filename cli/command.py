"""How commands of `podlane` are declared."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ADMIN = "/var/lib/podlane/master/admin.kubeconfig"
"""The file in which a master keeps the administrator's kubeconfig."""


FAILED, NOT_JUDGED = 1, 3
EXIT_CODES = {
    0: "done",
    1: "failed: a request was refused, a file cannot be read, no server answers; `podlane why`: packets are "
    "dropped; `scc explain`: the pod is refused; `doctor`: problems",
    2: "wrong use: the arguments are not accepted",
    NOT_JUDGED: "not judged: `podlane check` rejects nothing, but a kind needs a master; `podlane why` has no answer",
    130: "interrupted by Ctrl-C",
}
"""What the exit codes of `podlane` mean."""


class UsageError(Exception):
    """The arguments of a command contradict each other; `str(error)` says what is accepted."""


class InputError(Exception):
    """A file that cannot be read as text; `str(error)` names it."""


class Parser(argparse.ArgumentParser):
    """A parser whose commands say themselves what they do not accept, with their own usage, and what is near."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the arguments, and no unknown ones: these are an error of the command after which they are."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            near = difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1)
            if not near:
                raise
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; did you mean {near[0]!r}?") from None


def read_input(name: str) -> str:
    """Return the text of a file, or of standard input if the name is `-`. Raises InputError."""
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}; a readable file is accepted") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not text (byte {error.start}); UTF-8 is accepted") from None


MAX_NUMBER = 1_000_000
"""The largest number of hours or seconds that a command accepts."""


def positive_number(text: str) -> float:
    """Return the number of an argument, above 0 and at most MAX_NUMBER. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to {MAX_NUMBER}")
    return number


def whole_number(most: int) -> Callable[[str], int]:
    """Return the type of an argument that is a number from 1 to `most`."""

    def number(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")

    return number


def require_writable(file: Path) -> None:
    """Return if a file can be written, before a command does what it cannot undo. Raises InputError."""
    folder = file.parent
    if not folder.is_dir():
        raise InputError(f"{file}: there is no directory {folder}; nothing was done")
    if file.is_dir():
        raise InputError(f"{file} is a directory; the name of a file is accepted; nothing was done")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{file}: files of the directory {folder} cannot be written; nothing was done")


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
