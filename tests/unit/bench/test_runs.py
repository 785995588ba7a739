"""Files of runs, and the comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.measurement import Measurement
from bench.runs import compare, read_run, this_machine, write_run
from tests.unit.bench.examples import ATTACH, MEMORY, RATE, run_of


def test_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = run_of(ATTACH, RATE, MEMORY)
    write_run(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json") == run


def test_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(msgspec.ValidationError):
        read_run(tmp_path / "run.json")


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell] for line in table.splitlines()[1:]]


def test_comparison_shows_ratio_and_load_of_both_runs() -> None:
    faster = Measurement("attach", "ms", (6.0,), load=1.5)
    assert rows(compare({"attach": [faster]}, {"attach": [ATTACH]})) == [
        ["attach", "ms", "6.0", "12.0", "0.50", "1.5", "0.5"]
    ]


def test_comparison_names_missing_and_new_figures() -> None:
    assert rows(compare({"attach": [MEMORY]}, {"attach": [RATE]})) == [
        ["resident", "MB", "59.0", "-", "new", "0.5", "-"],
        ["in flight", "pods/s", "-", "95.0", "missing", "-", "0.5"],
    ]


def test_comparison_skips_measures_that_did_not_run() -> None:
    assert rows(compare({"attach": [MEMORY]}, {"attach": [MEMORY], "names": [RATE]})) == [
        ["resident", "MB", "59.0", "59.0", "1.00", "0.5", "0.5"]
    ]


def test_comparison_with_a_median_of_zero_has_no_ratio() -> None:
    lost = Measurement("lost", "lost", (1.0,), load=0.5)
    none = Measurement("lost", "lost", (0.0,), load=0.5)
    assert rows(compare({"outage": [lost]}, {"outage": [none]}))[0][4] == "-"


def test_machine_is_described() -> None:
    machine = this_machine()
    assert machine.cores > 0
    assert machine.cpu
    assert f"Python {machine.python}" in str(machine)
