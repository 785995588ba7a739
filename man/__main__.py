"""Writes the man pages of all commands into a folder, from the definitions of their arguments.

The folder is laid out as /usr/share/man: `man1/podlane.1.gz`, `man8/podlane-master.8.gz`. Pages of the same commit are
equal: the date is SOURCE_DATE_EPOCH, and the compressed files have no time.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import msgspec
from argparse_manpage.manpage import Manpage

import master.config
import node_agent.config
import sdn.config
from cli import cni, kubeconfig
from cli.__main__ import build_parser
from cli.command import ADMIN, EXIT_CODES
from reconcile import config_file

ADMINISTRATION = 8
DAEMON_EXIT_CODES = {0: "stopped by a signal", 1: "failed", 2: "settings are not accepted"}


@dataclass(frozen=True, slots=True)
class Page:
    """A man page. `summary` follows the name in the first section; `files` has a sentence for each file."""

    parser: argparse.ArgumentParser
    summary: str
    section: int
    exit_codes: Mapping[int, str]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the command."""
        return self.parser.prog

    def text(self, others: Iterable[Page]) -> str:
        """Return the page in the language of man(7)."""
        page = Manpage(self.parser, format="single-commands-section")
        page.description, page.section, page.manual = self.summary, self.section, "Podlane"
        page.source = f"podlane {version('podlane')}"
        page.add_section("exit status", ">", _list({str(code): what for code, what in self.exit_codes.items()}))
        if self.files:
            page.add_section("files", ">", _list(self.files))
        names = sorted((other.section, other.name) for other in others if other.name != self.name)
        page.add_section("see also", ">", ", ".join(f"\\fB{_escape(name)}\\fR({number})" for number, name in names))
        return str(page)


def pages() -> tuple[Page, ...]:
    """Return the pages of all commands."""
    state = {"/var/lib/podlane": "state", ADMIN: "the administrator's kubeconfig"}
    return (
        Page(
            build_parser(),
            "administration of a Podlane cluster",
            1,
            EXIT_CODES,
            {
                f"~/{kubeconfig.HOME_FILE}": "the kubeconfig, if KUBECONFIG is not set",
                ADMIN: "that of the administrator",
            },
        ),
        _daemon(master.config.MasterConfig, "podlane-master", "API server of a Podlane cluster", "master", state),
        _daemon(node_agent.config.Settings, "podlane-node-agent", "runs the pods of a node", "node-agent"),
        _daemon(sdn.config.Settings, "podlane-sdn", "connects the pods of a node", "sdn"),
        Page(_cni_parser(), "CNI plugin of the pod network", ADMINISTRATION, {0: "done", 1: "failed", 2: "wrong use"}),
    )


def _daemon(
    settings: type[msgspec.Struct], prog: str, summary: str, file: str, files: Mapping[str, str] | None = None
) -> Page:
    config = f"/etc/podlane/{file}.yaml"
    parser = config_file.build_parser(settings, prog, config)
    return Page(parser, summary, ADMINISTRATION, DAEMON_EXIT_CODES, {config: "the settings", **(files or {})})


def _cni_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="podlane-cni", description=(cni.__doc__ or "").replace("`podlane-cni`: ", ""))
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def _list(items: Mapping[str, str]) -> str:
    return "\n".join(f".TP\n\\fB{_escape(term)}\\fR\n{_escape(text)}" for term, text in items.items())


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")


def write(folder: Path) -> list[Path]:
    """Write all pages, and return their files. Raises OSError."""
    all_pages = pages()
    written = []
    for page in all_pages:
        path = folder / f"man{page.section}" / f"{page.name}.{page.section}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(page.text(all_pages).encode(), mtime=0))
        written.append(path)
    return written


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in write(Path(sys.argv[1])))
