"""`podlane completion`: prints a script by which a shell completes commands, options and names of files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "PATH"})
"""Metavariables of arguments that are files."""

HOW_TO = """\
Load it in the running shell, or put it where the shell looks for completions:

  bash   source <(podlane completion bash)
         podlane completion bash > /usr/share/bash-completion/completions/podlane
  zsh    eval "$(podlane completion zsh)"
         podlane completion zsh > /usr/share/zsh/vendor-completions/_podlane
  fish   podlane completion fish | source
         podlane completion fish > /usr/share/fish/vendor_completions.d/podlane.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))
    parser.epilog = HOW_TO
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell, from the definitions of the commands."""
    import shtab  # noqa: PLC0415 - only this command needs it

    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
