"""Versions of the packages, from tags of git and pyproject.toml. The standard library is all that it needs.

A release is tagged `v` and the version of pyproject.toml. The commits after it get `1.2.0+git3.HASH`, which sorts after
the release. While pyproject.toml names a version without a tag, its commits get `1.3.0~git3.HASH`, which sorts before
it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAGS = "v[0-9]*"
HASH_DIGITS = 12
NUMBERS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}", re.ASCII)


class VersionError(Exception):
    """A tag and pyproject.toml contradict each other, or this is no clone."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as `git describe` knows it. `distance` counts the commits since `tag`; without a tag, all of them."""

    tag: str
    distance: int
    hash: str
    is_dirty: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A version, in the form of dpkg and in that of Python."""

    debian: str
    python: str


def version_of(commit: Commit, project: str) -> Version:
    """Return the version of a commit whose pyproject.toml has the version `project`. Raises VersionError."""
    if NUMBERS.fullmatch(project) is None:
        raise VersionError(f"pyproject.toml: found the version {project!r}; numbers such as 1.2.0 are accepted")
    tagged = commit.tag.removeprefix("v")
    if commit.tag and NUMBERS.fullmatch(tagged) is None:
        raise VersionError(f"found the tag {commit.tag!r}; v and numbers, such as v1.2.0, are accepted")
    if commit.tag and (_numbers(tagged) > _numbers(project) or (commit.distance == 0 and tagged != project)):
        raise VersionError(
            f"the tag {commit.tag} is of another version than pyproject.toml, which has {project}; "
            f"correct the version there, or tag v{project}"
        )
    if tagged == project and commit.distance == 0 and not commit.is_dirty:
        return Version(project, project)
    is_after = tagged == project
    dirty = ".dirty" if commit.is_dirty else ""
    return Version(
        f"{project}{'+' if is_after else '~'}git{commit.distance}.{commit.hash}{dirty}",
        f"{project}.{'post' if is_after else 'dev'}{commit.distance}+g{commit.hash}{dirty}",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def commit_of(described: str, *, is_dirty: bool = False) -> Commit:
    """Return a commit from what `git describe --long` prints: TAG-DISTANCE-gHASH."""
    tag, distance, name = described.strip().rsplit("-", 2)
    return Commit(tag, int(distance), name.removeprefix("g"), is_dirty)


def read_version(revision: str = "") -> Version:
    """Return the version of a revision; without one, that of the files here. Raises VersionError."""
    name = revision or "HEAD"
    is_dirty = not revision and bool(_git("status", "--porcelain", "--untracked-files=no"))
    document = _git("show", f"{revision}:pyproject.toml") if revision else (ROOT / "pyproject.toml").read_text()
    project = str(tomllib.loads(document)["project"]["version"])
    if _git("tag", "--list", TAGS, "--merged", name):
        described = _git("describe", "--tags", "--long", f"--match={TAGS}", f"--abbrev={HASH_DIGITS}", name)
        return version_of(commit_of(described, is_dirty=is_dirty), project)
    distance = int(_git("rev-list", "--count", name))
    return version_of(Commit("", distance, _git("rev-parse", f"--short={HASH_DIGITS}", name), is_dirty), project)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise VersionError(f"git {' '.join(words)}: {done.stderr.strip()}; versions come from a clone with its history")
    return done.stdout.strip()


def main() -> int:
    """Print a version."""
    parser = argparse.ArgumentParser(description="prints the version of the packages")
    parser.add_argument("--python", action="store_true", help="in the form of Python packages")
    parser.add_argument("revision", nargs="?", default="", help="a commit; default: the files here")
    arguments = parser.parse_args()
    try:
        version = read_version(arguments.revision)
    except VersionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{version.python if arguments.python else version.debian}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
