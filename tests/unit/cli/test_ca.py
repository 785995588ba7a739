"""The files of a certificate authority that is changed."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import pytest

from cli import ca
from cli.__main__ import main
from master.auth import pki
from reconcile.errors import Refused

NOW = datetime.datetime.now(datetime.UTC)


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


def test_steps_out_of_order_say_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(step: str) -> str:
        assert main(["ca", step, f"--state-dir={tmp_path}"]) == 1
        return capsys.readouterr().err

    assert "cannot be read; run this as root on the host of the master" in refused("rotate")
    pki.authority(tmp_path / "pki", NOW)
    for step in ("activate", "retire"):
        assert "next: podlane ca rotate begins a change" in refused(step)
    assert main(["ca", "rotate", f"--state-dir={tmp_path}"]) == 0
    for step in ("rotate", "retire"):
        assert "next: podlane ca activate" in refused(step)
