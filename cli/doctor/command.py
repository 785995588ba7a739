"""`podlane doctor`: the command, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cli.doctor.host import CONFIG, FILES, Host, read_host
from cli.doctor.lab_findings import findings_in_lab
from cli.doctor.observations import Finding, Level, NotObserved
from lab.process import LabError
from lab.topology import Lab, Process, daemon_processes, master_process
from reconcile.terminal import table

PROGRESS_SECONDS = 2.0
"""After this time, the command says what it waits for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane doctor`."""
    add_config_argument(parser)
    add_output_argument(parser)


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument --config of commands about this host."""
    parser.add_argument(
        "--config",
        metavar="DIR",
        type=Path,
        default=CONFIG,
        help=f"directory of {', '.join(FILES.values())} ({CONFIG})",
    )


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument -o of commands that print findings."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output (text)")


def doctor(arguments: argparse.Namespace) -> int:
    """Examine this host, and print the findings. Return 1 if there are problems."""
    try:
        found = asyncio.run(examine_host(arguments.config))
    except NotObserved as error:
        found = (Finding("configuration", Level.PROBLEM, str(error), error.command),)
    sys.stdout.write(as_json(found) if arguments.output == "json" else as_text(found))
    return exit_code(found)


async def examine_host(config: Path) -> tuple[Finding, ...]:
    """Return the findings about this host, and tell on standard error what takes long. Raises NotObserved."""
    return await examine_with_progress(await read_host(config))


async def examine_with_progress(host: Host) -> tuple[Finding, ...]:
    """Return the findings about a host, and tell on standard error what takes long."""
    from cli.doctor.examine import CHECKS, examine  # noqa: PLC0415 - other commands start faster without it

    waiting = {check.name for check in CHECKS if check.daemons & set(host.daemons)}
    progress = asyncio.create_task(_tell_progress(waiting))
    try:
        return await examine(host, waiting.discard)
    finally:
        progress.cancel()


async def _tell_progress(waiting: set[str]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        sys.stderr.write(f"podlane: waiting for {', '.join(sorted(waiting))}\n")


def exit_code(found: Sequence[Finding]) -> int:
    """Return 1 if there are problems, else 0."""
    return int(any(finding.level is Level.PROBLEM for finding in found))


def as_json(found: Sequence[Finding]) -> str:
    """Return findings as JSON."""
    document = {"problems": sum(finding.level is Level.PROBLEM for finding in found), "findings": found}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def as_text(found: Sequence[Finding]) -> str:
    """Return a line for each finding, the worst ones last, where they are seen, and a line with their numbers."""
    order = list(Level)
    listed = sorted(found, key=lambda finding: order.index(finding.level))
    rows = [(finding.level.upper(), finding.check, _sentence(finding)) for finding in listed]
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    numbers = f"problems: {counts[Level.PROBLEM]}, warnings: {counts[Level.WARNING]}, good: {counts[Level.OK]}"
    return f"{table(('', 'CHECK', 'FOUND'), rows)}\n\n{numbers}\n"


def _sentence(finding: Finding) -> str:
    words = f"{finding.found}; run: {finding.command}" if finding.command else finding.found
    return "".join(character if character.isprintable() else " " for character in words)


def command_in_lab(lab: Lab, name: str, folder: Path) -> tuple[str, ...]:
    """Return the command that examines a node of a lab, or its master. Raises LabError.

    The configuration in force of its daemons is written to `folder`.
    """
    processes = {node.name: daemon_processes(lab, node) for node in lab.nodes} | {"master": (master_process(lab),)}
    if name not in processes:
        raise LabError(f"the lab has no {name!r}; {', '.join(processes)} are accepted")
    for process in processes[name]:
        daemon = Path(process.command[0]).name
        (folder / FILES[daemon]).write_text(_settings(process))
    namespace = processes[name][0].namespace or ""
    words = ("-m", "cli", "doctor", "--config", str(folder))
    return ("nsenter", f"--net=/run/netns/{namespace}", str(lab.bin_dir / "python"), *words)


def _settings(process: Process) -> str:
    """Return the flags of a daemon of the lab as a configuration file, beside those of its own file."""
    # A master judges its address by the links of its network namespace.
    entered = ("nsenter", f"--net=/run/netns/{process.namespace}") if process.namespace else ()
    command = [*entered, *process.command, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise LabError(f"{process.name}: {done.stderr.strip()}")
    return done.stdout


def lab_doctor(lab: Lab, name: str, output: str) -> int:
    """Examine a node of a lab, or its master. Return the exit code of `podlane doctor`. Raises LabError."""
    with tempfile.TemporaryDirectory(prefix="podlane-doctor-") as folder:
        command = command_in_lab(lab, name, Path(folder))
        done = subprocess.run([*command, "-o", "json"], check=False, stdout=subprocess.PIPE)
    try:
        report = msgspec.json.decode(done.stdout, type=_Report)
    except msgspec.DecodeError:
        raise LabError(f"the examination of {name} ended with {done.returncode} and no findings") from None
    found = tuple(findings_in_lab(report.findings, lab, name, Path(folder)))
    sys.stdout.write(as_json(found) if output == "json" else as_text(found))
    return exit_code(found)


class _Report(msgspec.Struct):
    """The findings as `podlane doctor -o json` prints them."""

    findings: list[Finding]
