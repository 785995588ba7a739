"""The installation of Debian packages for a lab shows how far it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.testbed.documents import ROOT

APT_GET = """\
#!/bin/sh
[ "$2" = install ] || exit {update}
echo "$*" > {folder}/arguments
for percent in 0.0 7.5 19.9 20 55.25 100; do echo "dlstatus:1:$percent:Retrieving file 1 of 4" >&3; done
echo "media-change: a:b" >&3
for percent in 0.0 41,5 99; do echo "pmstatus:runc:$percent:Unpacking runc (amd64)" >&3; done
exit {install}
"""


def install(folder: Path, update: int = 0, install: int = 0) -> subprocess.CompletedProcess[str]:
    apt_get = folder / "apt-get"
    apt_get.write_text(APT_GET.format(folder=folder, update=update, install=install))
    apt_get.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(ROOT / "lab/apt-install.sh"), "runc", "curl"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_each_fifth_of_the_work_is_a_line_with_its_time(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(re.match(r"\[ +\d+s\] ", line) for line in done.stdout.splitlines())
    assert [line.partition("] ")[2] for line in done.stdout.splitlines()] == [
        "reading the lists of packages",
        *(f"downloading packages: {percent} %" for percent in (0, 20, 40, 100)),
        *(f"installing packages: {percent} %" for percent in (0, 40, 80)),
        "2 packages are installed, with those that they need",
    ]
    assert (tmp_path / "arguments").read_text().endswith(" APT::Status-Fd=3 runc curl\n")


@pytest.mark.parametrize("codes", [{"update": 100}, {"install": 100}])
def test_error_of_apt_ends_it(tmp_path: Path, codes: dict[str, int]) -> None:
    done = install(tmp_path, **codes)
    assert done.returncode == 100
    assert "are installed" not in done.stdout
