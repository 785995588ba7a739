"""A signed apt repository with the packages of this checkout and of the commit before it, as a layer of machines."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from debian.version import read_version
from tests.testbed.hosts.machine import ROOT, call

BUILT = ROOT / ".deb"
ON_MACHINES = "srv/podlane"
SOURCES = "/etc/apt/sources.list.d/podlane.list"
COMMITS = 50


@dataclass(frozen=True)
class Repository:
    """A repository. `layer` is a directory to put below the root of a machine."""

    layer: Path
    current: str
    previous: str


def make_repository(state: Path) -> Repository:
    """Build the packages, unless they are there, and make the repository below a directory."""
    current = read_version().debian
    is_dirty = current.endswith(".dirty")
    commit = _previous_commit(is_dirty=is_dirty)
    previous = read_version(commit).debian
    call(ROOT / "debian/build.sh", BUILT, *(() if is_dirty else ("HEAD",)))
    call(ROOT / "debian/build.sh", BUILT, commit)
    packages, layer = state / "packages", state / "repository"
    packages.mkdir()
    for version in (current, previous):
        for package in BUILT.glob(f"podlane*_{version}_*.deb"):
            (packages / package.name).symlink_to(package)
    folder = layer / ON_MACHINES
    call(ROOT / "debian/repository.sh", packages, folder, state / "key.asc")
    for name in ("keyrings", "sources.list.d"):
        (layer / "etc/apt" / name).mkdir(parents=True)
    shutil.copy(folder / "podlane.asc", layer / "etc/apt/keyrings/podlane.asc")
    (layer / SOURCES.lstrip("/")).write_text(f"deb [signed-by=/etc/apt/keyrings/podlane.asc] file:/{ON_MACHINES} ./\n")
    return Repository(layer, current, previous)


def _previous_commit(*, is_dirty: bool) -> str:
    """Return the last commit before the files of this checkout that has packages."""
    listed = call("git", "-C", ROOT, "rev-list", f"--max-count={COMMITS}", f"--skip={0 if is_dirty else 1}", "HEAD")
    for commit in listed.split():
        if call("git", "-C", ROOT, "ls-tree", commit, "debian/control"):
            return commit
    raise AssertionError(f"none of the last {COMMITS} commits has debian/control: is the clone shallow?")
