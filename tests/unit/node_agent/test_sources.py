"""Manifest files as a source of pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.sources import Manifests

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: red}
spec: {containers: [{name: main, image: IMAGE}]}
"""


def manifest(name: str, image: str = "toolbox") -> str:
    return POD.replace("NAME", name).replace("IMAGE", image)


class Source:
    """A directory, and the pods that it makes: name and image."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changes = 0
        self._manifests = Manifests(directory, "Node-1", self._count)

    def _count(self) -> None:
        self.changes += 1

    def write(self, file: str, text: str) -> None:
        (self.directory / file).write_text(text)

    def pods(self) -> dict[str, str]:
        self._manifests.read()
        return {pod.metadata.name: pod.spec.containers[0].image for pod in self._manifests.pods.values()}

    def uids(self) -> list[str]:
        return sorted(self._manifests.pods)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_pods_come_change_and_go_with_their_files(source: Source) -> None:
    assert source.pods() == {}
    source.write("a.yaml", manifest("web") + "---\n" + manifest("db"))
    assert source.pods() == {"web-node-1": "toolbox", "db-node-1": "toolbox"}
    before = source.uids()
    assert source.pods()
    assert source.uids() == before
    source.write("a.yaml", manifest("web", "toolbox:2"))
    assert source.pods() == {"web-node-1": "toolbox:2"}
    assert source.uids()[0] not in before, "another pod, which takes the place of the first"
    (source.directory / "a.yaml").unlink()
    assert source.pods() == {}


def test_reading_the_same_again_is_no_change(source: Source) -> None:
    source.write("a.yaml", manifest("web"))
    source.pods()
    changes = source.changes
    source.pods()
    assert source.changes == changes


@pytest.mark.parametrize(
    "broken", ["{", "kind: Pod", "\0", manifest("web").replace("image", "imagine"), "[]", "kind: Node"]
)
def test_a_broken_file_keeps_its_pods_and_stops_no_other(source: Source, broken: str) -> None:
    source.write("a.yaml", manifest("web"))
    source.write("b.yaml", manifest("db"))
    source.pods()
    source.write("a.yaml", broken)
    source.write("b.yaml", manifest("other"))
    assert source.pods() == {"web-node-1": "toolbox", "other-node-1": "toolbox"}


def test_of_two_pods_with_one_name_the_first_counts(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.write("b.yaml", manifest("web", "second"))
    source.write("a.yaml", manifest("web", "first") + "---\n" + manifest("web", "third"))
    assert source.pods() == {"web-node-1": "first"}
    assert len([row for row in caplog.records if "second pod of this name" in row.message]) == 2
    (source.directory / "a.yaml").unlink()
    assert source.pods() == {"web-node-1": "second"}


def test_hidden_files_and_folders_are_left_alone(source: Source) -> None:
    source.write(".a.yaml.swp", manifest("web"))
    (source.directory / "folder").mkdir()
    assert source.pods() == {}
