"""The files of a certificate authority that is changed."""

from __future__ import annotations

import datetime
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import ca
from cli.__main__ import main
from master.auth import pki
from reconcile.errors import Refused

NOW = datetime.datetime.now(datetime.UTC)
NOBODY = 65534


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_activation_that_is_interrupted_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = tmp_path / "pki"
    before = pki.authority(folder, NOW)
    assert main(["ca", "rotate", f"--state-dir={tmp_path}"]) == 0
    both = pki.authority(folder, NOW)
    assert (both.certificate, len(both.trusted)) == (before.certificate, 2)
    writes, write = itertools.count(1), ca._write

    def interrupted(path: Path, data: bytes, mode: int) -> None:
        if next(writes) == step:
            raise KeyboardInterrupt
        write(path, data, mode)

    monkeypatch.setattr(ca, "_write", interrupted)
    activate = ["ca", "activate", "--force", f"--state-dir={tmp_path}"]
    assert main(activate) == (0 if step == 4 else 130)
    if step == 3:
        with pytest.raises(Refused, match="`podlane ca activate` was interrupted, run it again"):
            pki.authority(folder, NOW)
    if step != 4:
        assert main(activate) == 0
    after = pki.authority(folder, NOW)
    assert (after.certificate, after.others) == (both.others[0], (before.certificate,))
    assert main(["ca", "retire", "--force", f"--state-dir={tmp_path}"]) == 0
    assert pki.authority(folder, NOW).trusted == (after.certificate,)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "ca.key", "trusted.crt"]


def test_a_user_other_than_root_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert main(["ca", "rotate", f"--state-dir={tmp_path}"]) == 1
    assert "cannot be read; run this as root on the host of the master" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is sure that there is no file")
def test_steps_out_of_order_say_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(step: str) -> str:
        assert main(["ca", step, f"--state-dir={tmp_path}"]) == 1
        return capsys.readouterr().err

    assert f"there is no {tmp_path}/pki/ca.key; --state-dir names the stateDir of the master" in refused("rotate")
    pki.authority(tmp_path / "pki", NOW)
    for step in ("activate", "retire"):
        assert "next: podlane ca rotate begins a change" in refused(step)
    assert main(["ca", "rotate", f"--state-dir={tmp_path}"]) == 0
    for step in ("rotate", "retire"):
        assert "next: podlane ca activate" in refused(step)


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """Yield a state directory that belongs to another user than root, and in which there is an authority."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state = Path(folder) / "state"
        state.mkdir()
        pki.authority(state / "pki", NOW)
        for path in (state, state / "pki", *(state / "pki").iterdir()):
            os.chown(path, NOBODY, NOBODY)
        yield state


@pytest.mark.skipif(os.geteuid() != 0, reason="root runs the command for the user of the master")
@pytest.mark.parametrize("file", ["ca.crt", "ca-next.crt", "ca-next.key"])
def test_links_of_the_masters_user_give_it_no_files_of_root(
    of_nobody: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert main(["ca", "rotate", f"--state-dir={of_nobody}"]) == 0
    folder = of_nobody / "pki"
    assert {path.stat().st_uid for path in folder.iterdir()} == {NOBODY}
    link, own, foreign = folder / file, folder / "own", of_nobody.parent / "of-root"
    link.rename(own)
    foreign.write_bytes(own.read_bytes())
    foreign.chmod(0o640)
    link.symlink_to(foreign)
    activate = ["ca", "activate", "--force", f"--state-dir={of_nobody}"]
    assert main(activate) == 1
    assert f"{file}: Permission denied" in capsys.readouterr().err
    assert (foreign.stat().st_uid, os.geteuid()) == (0, 0)

    link.unlink()
    own.rename(link)
    assert main(activate) == 0
    assert {path.stat().st_uid for path in folder.iterdir()} == {NOBODY}
