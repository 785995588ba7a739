"""The installation of packages for a lab shows how far it is."""

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
echo "$*" | tr " " "\n" >> {folder}/installed
for percent in 0.0 7.5 19.9 20 55.25 100; do echo "dlstatus:1:$percent:Retrieving file 1 of 4" >&3; done
echo "media-change: a:b" >&3
for percent in 0.0 41,5 99; do echo "pmstatus:runc:$percent:Unpacking runc (amd64)" >&3; done
echo "debconf: delaying package configuration, since apt-utils is not installed" >&2
echo "E: a real problem" >&2
exit {install}
"""
PIP = """\
#!/bin/sh
echo "$*" > {folder}/arguments
for number in $(seq 12); do echo "Collecting package-$number>=1"; echo "  Downloading it"; done
echo "Installing build dependencies: started"
echo "Installing collected packages: a, b"
exit {install}
"""

DPKG_QUERY = """\
#!/bin/sh
for package; do :; done
! grep -qsx "$package" {folder}/installed || printf installed
"""
SERVICES = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/services
"""
DISABLED = "update-rc.d docker-registry disable\ninvoke-rc.d docker-registry stop\n"


def install(
    folder: Path, program: str, *words: str, update: int = 0, install: int = 0
) -> subprocess.CompletedProcess[str]:
    stand_ins = {
        program: APT_GET if program == "apt-get" else PIP,
        "dpkg-query": DPKG_QUERY,
        "update-rc.d": SERVICES,
        "invoke-rc.d": SERVICES,
    }
    for name, text in stand_ins.items():
        stand_in = folder / name
        stand_in.write_text(text.format(folder=folder, update=update, install=install))
        stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(ROOT / "lab/install.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what was printed, without the times that are before each line."""
    assert done.returncode == 0, done.stderr
    assert all(re.match(r"\[ +\d+s\] ", line) for line in done.stdout.splitlines())
    return [line.partition("] ")[2] for line in done.stdout.splitlines()]


def test_each_fifth_of_the_work_of_apt_is_a_line(tmp_path: Path) -> None:
    done = install(tmp_path, "apt-get", "apt", "runc", "curl")
    assert lines(done) == [
        "reading the lists of packages",
        *(f"downloading packages: {percent} %" for percent in (0, 20, 40, 100)),
        *(f"installing packages: {percent} %" for percent in (0, 40, 80)),
        "the packages are installed",
    ]
    assert done.stderr == "E: a real problem\n"
    assert (tmp_path / "arguments").read_text().endswith(" APT::Status-Fd=3 runc curl\n")


@pytest.mark.parametrize(
    ("before", "package", "services"),
    [("", "docker-registry", DISABLED), ("docker-registry", "docker-registry", ""), ("", "runc", "")],
)
def test_registry_that_comes_as_a_package_does_not_run(
    tmp_path: Path, before: str, package: str, services: str
) -> None:
    """One that was here before is left as it is."""
    (tmp_path / "installed").write_text(f"{before}\n")
    (tmp_path / "services").touch()
    lines(install(tmp_path, "apt-get", "apt", package))
    assert (tmp_path / "services").read_text() == services


def test_each_fifth_package_of_pip_is_a_line(tmp_path: Path) -> None:
    done = install(tmp_path, "pip", "pip", "pip", "-e", ".[dev]")
    assert lines(done) == [
        "5 Python packages are found",
        "10 Python packages are found",
        "installing 12 Python packages",
        "the Python packages are installed",
    ]
    assert (tmp_path / "arguments").read_text().endswith(" -e .[dev]\n")


@pytest.mark.parametrize(
    ("program", "words", "codes"),
    [
        ("apt-get", ("apt", "runc"), {"update": 100}),
        ("apt-get", ("apt", "runc"), {"install": 100}),
        ("pip", ("pip", "pip", "-e", "."), {"install": 100}),
    ],
)
def test_error_ends_it(tmp_path: Path, program: str, words: tuple[str, ...], codes: dict[str, int]) -> None:
    done = install(tmp_path, program, *words, **codes)
    assert done.returncode == 100
    assert "are installed" not in done.stdout


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    assert install(tmp_path, "pip", "apk", "runc").returncode == 2
