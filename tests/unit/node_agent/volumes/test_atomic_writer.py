"""All files of a volume change atomically, even when the writer is killed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.volumes.atomic_writer import write_payload
from node_agent.volumes.payload import PayloadFile
from tests.testbed.docker.fake import AgentKilled
from tests.testbed.fault_injection import INJECTOR


def payload(**texts: str) -> dict[str, PayloadFile]:
    return {name.replace("__", "/"): PayloadFile(text.encode(), 0o640) for name, text in texts.items()}


def visible_files(root: Path) -> dict[str, str]:
    """Return the files as a container sees them: the targets of the links."""
    entries = [entry for entry in root.iterdir() if not entry.name.startswith("..")]
    paths = [Path(folder, name) for entry in entries for folder, _, names in os.walk(entry) for name in names]
    paths += [entry for entry in entries if entry.is_file()]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def texts(files: Mapping[str, PayloadFile]) -> dict[str, str]:
    return {path: file.content.decode() for path, file in files.items()}


OLD = payload(a="1", b="1", d__x="1", d__deep__y="1")
NEW = payload(a="2", c="2", d__x="2")


def test_atomic_volume_has_kubelets_symlinks(tmp_path: Path) -> None:
    assert write_payload(tmp_path, OLD)
    current = os.readlink(tmp_path / "..data")
    assert re.fullmatch(r"\.\.\d{4}(_\d\d){5}\.\d+", current)
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", current, "a", "b", "d"])
    assert {name: os.readlink(tmp_path / name) for name in "abd"} == {name: f"..data/{name}" for name in "abd"}
    assert stat.S_IMODE((tmp_path / current).stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / current / "d" / "deep").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "d" / "x").stat().st_mode) == 0o640
    assert visible_files(tmp_path) == texts(OLD)


def test_unchanged_volume_content_is_not_written(tmp_path: Path) -> None:
    write_payload(tmp_path, OLD)
    before = os.readlink(tmp_path / "..data")
    assert not write_payload(tmp_path, dict(OLD))
    assert os.readlink(tmp_path / "..data") == before
    assert write_payload(tmp_path, {**OLD, "a": PayloadFile(b"1", 0o600)}), "a mode counts"
    assert not write_payload(tmp_path, {**OLD, "a": PayloadFile(b"1", 0o600)})
    (tmp_path / "..data" / "a").write_text("by hand")
    assert write_payload(tmp_path, OLD)
    assert visible_files(tmp_path) == texts(OLD)
    assert len([name for name in os.listdir(tmp_path) if name.startswith("..")]) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to a group needs root")
def test_fs_group_owns_files_and_directories(tmp_path: Path) -> None:
    write_payload(tmp_path, OLD, group=2000)
    for path in (tmp_path / "a", tmp_path / "..data" / "d", tmp_path / "d" / "deep" / "y", tmp_path / "..data"):
        assert path.stat().st_gid == 2000
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o2755
    assert not write_payload(tmp_path, OLD, group=2000)
    assert write_payload(tmp_path, OLD, group=2001)


def test_empty_payload_makes_an_empty_volume(tmp_path: Path) -> None:
    assert write_payload(tmp_path, {})
    assert not write_payload(tmp_path, {})
    assert write_payload(tmp_path, OLD)
    assert write_payload(tmp_path, {})
    assert visible_files(tmp_path) == {}


def test_killed_writer_leaves_the_old_or_the_new_content_complete(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    write_payload(tmp_path / "count", OLD)
    with INJECTOR.after(10_000):
        write_payload(tmp_path / "count", NEW)
    acts = INJECTOR.acts
    assert acts > 10
    for number in range(acts):
        root = tmp_path / str(number)
        root.mkdir()
        write_payload(root, OLD)
        with pytest.raises(AgentKilled), INJECTOR.after(number):
            write_payload(root, NEW)
        behind = {str(path.relative_to(root / "..data")): path.read_text() for path in _files(root / "..data")}
        assert behind in (texts(OLD), texts(NEW)), f"killed after {number} of {acts}"
        write_payload(root, NEW)
        assert visible_files(root) == texts(NEW)
        assert len([name for name in os.listdir(root) if name.startswith("..")]) == 2


def _files(root: Path) -> list[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]


NAMES = st.sampled_from(["a", "b", "d/x", "d/y", "e/f/g"])
CONTENTS = st.dictionaries(NAMES, st.builds(PayloadFile, st.binary(max_size=4), st.sampled_from([0o644, 0o600])))


@given(st.lists(CONTENTS, min_size=1, max_size=5))
def test_writer_reaches_the_last_payload_from_any_state(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, PayloadFile]]
) -> None:
    root = tmp_path_factory.mktemp("volume")
    for state in states:
        write_payload(root, state)
    content = {str(path.relative_to(root / "..data")): path.read_bytes() for path in _files(root / "..data")}
    assert content == {path: file.content for path, file in states[-1].items()}
    names = {name for name in os.listdir(root) if not name.startswith("..")}
    assert names == {path.split("/")[0] for path in states[-1]}
