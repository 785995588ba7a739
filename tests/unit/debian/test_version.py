"""Versions of the packages: what they are, and that dpkg orders them as the commits."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from debian.version import Commit, VersionError, commit_of, version_of

HASH = "0123456789ab"
IN_ORDER = (
    version_of(Commit("", 7, HASH), "0.1.0"),
    version_of(Commit("", 7, HASH, is_dirty=True), "0.1.0"),
    version_of(Commit("", 10, "a" * 12), "0.1.0"),
    version_of(Commit("v0.1.0", 0, HASH), "0.1.0"),
    version_of(Commit("v0.1.0", 0, HASH, is_dirty=True), "0.1.0"),
    version_of(Commit("v0.1.0", 2, HASH), "0.1.0"),
    version_of(Commit("v0.1.0", 11, HASH), "0.1.0"),
    version_of(Commit("v0.1.0", 12, HASH), "0.2.0"),
    version_of(Commit("v0.2.0", 0, HASH), "0.2.0"),
    version_of(Commit("v0.2.0", 1, HASH), "0.10.0"),
)


def test_forms_of_dpkg_and_of_python() -> None:
    assert [version.debian for version in IN_ORDER] == [
        f"0.1.0~git7.{HASH}",
        f"0.1.0~git7.{HASH}.dirty",
        "0.1.0~git10.aaaaaaaaaaaa",
        "0.1.0",
        f"0.1.0+git0.{HASH}.dirty",
        f"0.1.0+git2.{HASH}",
        f"0.1.0+git11.{HASH}",
        f"0.2.0~git12.{HASH}",
        "0.2.0",
        f"0.10.0~git1.{HASH}",
    ]
    assert [version.python for version in IN_ORDER][2:6] == [
        "0.1.0.dev10+gaaaaaaaaaaaa",
        "0.1.0",
        f"0.1.0.post0+g{HASH}.dirty",
        f"0.1.0.post2+g{HASH}",
    ]


def test_dpkg_orders_them_as_the_commits() -> None:
    for earlier, later in itertools.pairwise(version.debian for version in IN_ORDER):
        for relation, holds in (("lt", True), ("gt", False)):
            done = subprocess.run(["dpkg", "--compare-versions", earlier, relation, later], check=False)
            assert (done.returncode == 0) == holds, (earlier, relation, later)


@pytest.mark.parametrize(
    ("commit", "project", "complaint"),
    [
        (Commit("v0.2.0", 0, HASH), "0.1.0", r"tag v0\.2\.0 .* pyproject\.toml, which has 0\.1\.0"),
        (Commit("v0.2.0", 3, HASH), "0.1.0", r"tag v0\.2\.0 "),
        (Commit("v0.1.0", 0, HASH), "0.2.0", r"tag v0\.1\.0 "),
        (Commit("v1-rc1", 0, HASH), "1.0.0", "v1-rc1"),
        (Commit("", 3, HASH), "1.0-2", "1.0-2"),
        (Commit("", 3, HASH), "", "''"),
    ],
)
def test_contradicting_versions_are_refused(commit: Commit, project: str, complaint: str) -> None:
    with pytest.raises(VersionError, match=complaint):
        version_of(commit, project)


def test_description_of_git_is_read_from_its_end() -> None:
    assert commit_of(f"v1.2.0-14-g{HASH}\n") == Commit("v1.2.0", 14, HASH)
    assert commit_of(f"v1-rc1-0-g{HASH}") == Commit("v1-rc1", 0, HASH)
