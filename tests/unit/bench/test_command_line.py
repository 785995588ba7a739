"""`python -m bench`: its help, and what it refuses before it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import document
from bench.__main__ import main
from bench.measurement import SizeName
from bench.measures import MODULES, load
from bench.runs import this_version, write_run
from tests.unit.bench.examples import ATTACH, run_of


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    return capsys.readouterr().err


def test_help_explains_every_measure_and_its_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    for name in MODULES:
        measure = load(name)
        position = next(
            index for index, line in enumerate(lines) if line.split() == [name, *measure.description.split()]
        )
        assert lines[position + 1].strip() == f"full: {measure.describe_size(SizeName.FULL)}"
        assert lines[position + 2].strip() == f"smallest: {measure.describe_size(SizeName.SMALLEST)}"


@pytest.mark.parametrize("name", MODULES)
def test_smallest_size_differs_from_the_full_one(name: str) -> None:
    assert load(name).full != load(name).smallest


def test_unknown_measure_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "attach, " in refusal(monkeypatch, capsys, "atach")


def test_comparison_with_another_size_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_run(tmp_path / "run.json", run_of(ATTACH))
    text = refusal(monkeypatch, capsys, "names", "--size=smallest", f"--compare={tmp_path}/run.json")
    assert "is a run of size full, this is one of size smallest" in text


def test_comparison_with_another_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert "is not a file that --json wrote" in refusal(monkeypatch, capsys, f"--compare={tmp_path}/run.json")
    assert "is not a file that --json wrote" in refusal(monkeypatch, capsys, f"--compare={tmp_path}/absent.json")


def test_figures_of_the_smallest_size_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "only figures of size full" in refusal(monkeypatch, capsys, "--record", "--size=smallest")


def test_single_measure_is_not_recorded_beside_those_of_another_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(document, "DATA", tmp_path / "performance.json")
    elsewhere = run_of(ATTACH, version=this_version())
    document.write_entries(document.DATA, document.with_run([], elsewhere, ["attach"]))
    text = refusal(monkeypatch, capsys, "--record", "names")
    assert f"from another machine ({elsewhere.machine})" in text
