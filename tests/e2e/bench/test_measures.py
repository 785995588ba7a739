"""Each measure of the benchmark, at its smallest size, yields its figures. How large they are is not checked."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measurement import Measurement
from bench.measures import MODULES
from bench.runs import ROOT, read_run

FIGURES = Path(__file__).parent / "figures"
LIMIT_SECONDS = 600.0


def measure(name: str, file: Path) -> list[Measurement]:
    """Run one measure in a process of its own."""
    command = [sys.executable, "-m", "bench", name, "--size=smallest", f"--json={file}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_run(file).measures[name]


@pytest.mark.parametrize("name", MODULES)
def test_measure_yields_its_figures(name: str, tmp_path: Path) -> None:
    figures = measure(name, tmp_path / "run.json")
    for figure in figures:
        assert figure.samples, figure.what
        assert all(map(math.isfinite, (*figure.samples, *figure.floor_samples, *figure.peer_samples))), figure.what
        assert bool(figure.floor) == bool(figure.floor_samples), figure.what
        assert bool(figure.peer) == bool(figure.peer_samples), figure.what
        assert figure.budget is None or figure.figure().is_met is not None, figure.what
    names = "".join(f"{figure.what} [{figure.unit}]\n" for figure in figures)
    golden = FIGURES / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(names)
    assert names == golden.read_text(), "if this is meant, run it with GOLDEN=write and read the diff"


def test_every_list_of_figures_belongs_to_a_measure() -> None:
    assert {path.stem for path in FIGURES.iterdir()} == set(MODULES)
