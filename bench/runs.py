"""Runs of the benchmark: the machine and the commit that were measured, and the comparison of two runs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from bench.measurement import Figure, Measurement, SizeName, number_text, ratio_text
from reconcile.terminal import table

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = ("WHAT", "UNIT", "P50", "EARLIER", "RATIO", "LOAD", "EARLIER LOAD")


class Machine(msgspec.Struct, frozen=True):
    """What figures depend on beside the code."""

    cores: int
    cpu: str
    memory: int
    """In GB."""

    kernel: str
    python: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores of {self.cpu}, {self.memory} GB of memory, Linux {self.kernel}, Python {self.python}"
        )


def this_machine() -> Machine:
    """Return what this machine is."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=model[1] if model else platform.machine(),
        memory=round(psutil.virtual_memory().total / 1e9),
        kernel=platform.release(),
        python=platform.python_version(),
    )


class Run(msgspec.Struct, frozen=True, rename="camel"):
    """The file of `--json`: every sample of the measures that were run."""

    version: str
    commit: str
    machine: Machine
    size: SizeName
    measures: dict[str, list[Measurement]]


def this_version() -> str:
    """Return the version of Podlane."""
    return version("podlane")


def this_commit() -> str:
    """Return the commit that is checked out, with `-dirty` if files differ from it, or `unknown` outside of git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def read_run(path: Path) -> Run:
    """Return the run of a file. Raises OSError and msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def write_run(path: Path, run: Run) -> None:
    """Write a run with all samples."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def compare(now: Mapping[str, list[Measurement]], earlier: Mapping[str, list[Measurement]]) -> str:
    """Return a table of the ratios of medians to an earlier run.

    A figure of a measure that ran now and is only in the earlier run is `missing`, one that is only in this run is
    `new`. Measures that did not run now are not in the table.
    """
    rows: list[tuple[str, ...]] = []
    for name, measurements in now.items():
        ours = {measurement.what: measurement.figure() for measurement in measurements}
        theirs = {measurement.what: measurement.figure() for measurement in earlier.get(name, ())}
        rows += _compared(ours, theirs)
    return table(HEADINGS, rows)


def _compared(ours: Mapping[str, Figure], theirs: Mapping[str, Figure]) -> Iterator[tuple[str, ...]]:
    for what, figure in ours.items():
        median, load = number_text(figure.median), f"{figure.load:.1f}"
        before = theirs.get(what)
        if before is None:
            yield what, figure.unit, median, "-", "new", load, "-"
        else:
            ratio = ratio_text(figure.median / before.median if before.median else None)
            yield what, figure.unit, median, number_text(before.median), ratio, load, f"{before.load:.1f}"
    for what, before in theirs.items():
        if what not in ours:
            yield what, before.unit, "-", number_text(before.median), "missing", "-", f"{before.load:.1f}"
