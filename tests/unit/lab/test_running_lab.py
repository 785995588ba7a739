"""The lab that commands act on, and what they say of one that is not whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from lab import up
from lab.process import LabError, exclusive, is_held
from lab.topology import Site
from lab.up import Options, lab_up, running_lab

FILES = ("kubeconfig", "users/red.password", "users/blue.password", "bin/podlane")


@dataclass(frozen=True)
class LinkedSite(Site):
    """A site whose link is below a folder of the test."""

    folder: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LinkedSite:
    """A site with a lab that is up, with its state in `state` below the test's folder."""
    state = tmp_path / "state"
    for file in FILES:
        (state / file).parent.mkdir(parents=True, exist_ok=True)
        (state / file).touch()
    (state / "lab.json").write_text(json.dumps({"size": 1, "plugin": "ovs-subnet"}))
    (tmp_path / "run").symlink_to(state)
    monkeypatch.setattr(up, "is_up", lambda _: True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(up, "NEEDED", ())
    return LinkedSite(f"podunit{os.getpid()}", IPv4Network("10.245.9.0/24"), tmp_path)


def test_commands_act_on_the_lab_that_is_up_from_any_directory(
    site: LinkedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.folder / "elsewhere").mkdir()
    monkeypatch.chdir(site.folder / "elsewhere")
    lab = running_lab(site)
    assert (lab.state, lab.size, lab.plugin) == (site.folder / "state", 1, "ovs-subnet")
    with pytest.raises(LabError, match=r"another lab is up, with its state in .*state; take it down first"):
        lab_up(Path(".lab"), site=site)


@pytest.mark.parametrize("file", [*FILES, "lab.json"])
def test_a_missing_file_of_a_lab_is_named(site: LinkedSite, file: str) -> None:
    missing = site.folder / "state" / file
    missing.unlink()
    sentence = f"the lab is up, but its file {missing} is missing; `make lab-down` and `make lab` make another lab"
    for command in (lambda: running_lab(site), lambda: lab_up(missing.parents[file.count("/")], Options(), site)):
        with pytest.raises(LabError) as raised:
            command()
        assert str(raised.value) == sentence


def test_a_lab_that_another_command_changes_is_waited_for(site: LinkedSite) -> None:
    assert not is_held(site)
    with exclusive(site):
        assert is_held(site)
        (site.folder / "state" / "kubeconfig").unlink()
        with pytest.raises(LabError, match="the lab is being brought up or taken down by another command"):
            running_lab(site)
    assert not is_held(site)


def test_options_of_another_lab_are_compared_in_words(site: LinkedSite) -> None:
    with pytest.raises(LabError) as raised:
        lab_up(site.folder / "state", Options(size=2), site)
    assert str(raised.value).startswith(
        "a lab of 1 node with ovs-subnet is up, not a lab of 2 nodes with ovs-subnet; take it down first"
    )
