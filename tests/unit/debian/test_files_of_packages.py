"""What the packages install, against what is in systemd/ and what systemd/install.sh installs."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEBIAN, SYSTEMD = ROOT / "debian", ROOT / "systemd"
PACKAGES = ("podlane", "podlane-master", "podlane-node")
UNIT_KINDS = {".service", ".path", ".target"}
IN_THE_CLONE_ONLY = {"install.sh"}


def installed_units(package: str) -> set[str]:
    words = [line.split() for line in (DEBIAN / f"{package}.install").read_text().splitlines()]
    return {Path(source).name for source, target in words if target == "lib/systemd/system"}


def test_every_unit_is_in_one_package() -> None:
    units = [unit for package in PACKAGES for unit in installed_units(package)]
    assert sorted(units) == sorted(path.name for path in SYSTEMD.iterdir() if path.suffix in UNIT_KINDS)


@pytest.mark.parametrize("package", PACKAGES)
def test_units_of_a_package_are_adopted_by_its_postinst_and_stopped_by_its_prerm(package: str) -> None:
    adopted = (DEBIAN / f"{package}.postinst").read_text().partition("adopt-units")[2]
    assert set(re.findall(r"podlane\S*\.(?:service|path|target)", adopted)) == installed_units(package)
    stopped = (DEBIAN / f"{package}.prerm").read_text().partition("disable --now")[2]
    enabled = {unit for unit in installed_units(package) if "[Install]" in (SYSTEMD / unit).read_text()}
    assert enabled
    assert set(re.findall(r"podlane\S*\.(?:service|path|target)", stopped)) == enabled


def test_every_file_of_systemd_is_packaged() -> None:
    lists = "\n".join(
        [*((DEBIAN / f"{package}.install").read_text() for package in PACKAGES), (DEBIAN / "rules").read_text()]
    )
    files = {path.name for path in SYSTEMD.iterdir() if path.is_file()} - IN_THE_CLONE_ONLY
    assert {name for name in files if f"systemd/{name}" not in lists} == set()


def test_packages_have_the_folders_of_a_clone() -> None:
    """install.sh and the packages share units and documents, which name files below /opt/podlane/share."""
    lists = "".join((DEBIAN / f"{package}.install").read_text() for package in PACKAGES)
    packaged = set(re.findall(r"opt/podlane/share/(\w+)", lists)) - {"examples"}
    script = (SYSTEMD / "install.sh").read_text()
    assert packaged == set(re.findall(r"/opt/podlane/share/(\w+)", script)) != set()


def test_every_command_is_linked() -> None:
    """The CNI plugin is no entry point, and has no link: runtimes call it in their own folder of plugins."""
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].keys()
    links = "".join((DEBIAN / f"{package}.links").read_text() for package in PACKAGES)
    linked = {line.split()[1] for line in links.splitlines() if "/bin/" in line}
    assert linked == {f"usr/bin/{command}" for command in commands}


def test_a_node_depends_on_what_the_clone_installs() -> None:
    wanted = re.search(
        r"services=\(podlane-sdn.*?packages=\(\S+ ([^)]*)\)", (SYSTEMD / "install.sh").read_text(), re.DOTALL
    )
    assert wanted is not None
    stanza = (DEBIAN / "control").read_text().partition("Package: podlane-node\n")[2]
    depends = re.search(r"^Depends: (.*?)^\S", stanza, re.DOTALL | re.MULTILINE)
    assert depends is not None
    assert {word.strip() for word in depends[1].split(",")} == {
        "podlane (= ${binary:Version})",
        "${misc:Depends}",
        *wanted[1].split(),
    }


@pytest.mark.parametrize(
    "script", sorted(path.name for kind in ("*.pre*", "*.post*", "*.sh") for path in DEBIAN.glob(kind))
)
def test_scripts_are_good_shell(script: str) -> None:
    path = DEBIAN / script
    shell = path.read_text().partition("\n")[0].rpartition("/")[2].rpartition(" ")[2]
    assert shell in {"sh", "bash"}
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
