"""docs/performance.json and the document that is generated from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.document import Entry, document, read_entries, with_run, write_entries
from bench.measurement import Measurement
from tests.unit.bench.examples import ATTACH, MACHINE, MEMORY, RATE, run_of

OTHER_MACHINE = msgspec.structs.replace(MACHINE, cores=64)
NAMES = ("attach", "names")


def entries_of(*runs: tuple[str, Measurement]) -> list[Entry]:
    entries: list[Entry] = []
    for version, measurement in runs:
        entries = with_run(entries, run_of(measurement, version=version), NAMES)
    return entries


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    entries = entries_of(("0.1.0", ATTACH), ("0.2.0", RATE))
    write_entries(tmp_path / "performance.json", entries)
    assert read_entries(tmp_path / "performance.json") == entries


def test_each_version_has_one_entry() -> None:
    entries = entries_of(("0.1.0", ATTACH), ("0.2.0", RATE), ("0.2.0", MEMORY))
    assert [entry.version for entry in entries] == ["0.1.0", "0.2.0"]
    assert [figure.what for figure in entries[-1].measures["attach"].figures] == ["resident"]


def test_run_of_one_measure_keeps_the_others() -> None:
    before = with_run([], run_of(ATTACH, name="names"), NAMES)
    after = with_run(before, run_of(RATE), NAMES)
    assert list(after[-1].measures) == ["attach", "names"]
    assert after[-1].measures["names"] == before[-1].measures["names"]


def test_run_on_another_machine_replaces_the_entry() -> None:
    before = with_run([], run_of(ATTACH, name="names"), NAMES)
    after = with_run(before, run_of(RATE, machine=OTHER_MACHINE), NAMES)
    assert [(entry.machine, list(entry.measures)) for entry in after] == [(OTHER_MACHINE, ["attach"])]


def test_measure_that_no_longer_exists_is_removed() -> None:
    before = with_run([], run_of(ATTACH, name="names"), NAMES)
    assert list(with_run(before, run_of(RATE), ["attach"])[-1].measures) == ["attach"]


def test_recorded_figures_have_four_digits() -> None:
    (entry,) = entries_of(("0.1.0", Measurement("it", "ms", (1 / 3,), load=1 / 3)))
    (figure,) = entry.measures["attach"].figures
    assert (figure.median, figure.load) == (0.3333, 0.3333)


def test_document_shows_machine_figures_and_missed_budgets() -> None:
    run = run_of(ATTACH, MEMORY)
    text = document(with_run([], run, NAMES))
    assert f"Machine: {MACHINE}." in text
    assert "1 of 2 budgets are met; these are not:" in text
    assert "| attach | ≤ 1.6 × floor | 12.0 ms, 2.00 × floor | 0.5 |" in text
    assert "Commit 0123abc." in text
    assert "| attach | ≤ 1.6 × floor | no | 12.0 ms | 30.0 | 3 | 6.0 (bare) | 2.00 | - | - | 0.5 |" in text
    assert "| resident | ≤ 60 MB | yes | 59.0 MB | 59.0 | 1 | - | - | - | - | 0.5 |" in text


def test_history_has_a_column_for_each_version() -> None:
    faster = msgspec.structs.replace(ATTACH, samples=(9.0,))
    text = document(entries_of(("0.1.0", ATTACH), ("0.2.0", faster)))
    assert "| What | Unit | 0.2.0 | 0.1.0 |" in text
    assert "| attach | ms | 9.0 (1.50) | 12.0 (2.00) |" in text


def test_history_has_a_dash_where_a_version_lacks_the_figure() -> None:
    text = document(entries_of(("0.1.0", ATTACH), ("0.2.0", MEMORY)))
    assert "| resident | MB | 59.0 | - |" in text


def test_document_without_entries_says_how_to_measure() -> None:
    assert "make performance" in document([])
    assert "No figures of any version are recorded yet." in document([])
    assert "No figures" not in document(entries_of(("0.1.0", ATTACH)))
