"""Archives and nodes that `podlane image load` accepts."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.node import Node, NodeStatus
from api.meta.types import Condition, ObjectMeta
from cli.command import InputError
from cli.image import chosen_nodes
from lab.archives import archived_images
from lab.process import LabError

HEX = "ab" * 32


def archive(folder: Path, manifest: Any) -> Path:
    """Write an archive with nothing but its index."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    member = tarfile.TarInfo("manifest.json")
    member.size = len(text)
    with tarfile.open(folder / "archive.tar", "w") as content:
        content.addfile(member, io.BytesIO(text))
    return folder / "archive.tar"


@pytest.mark.parametrize("config", [f"{HEX}.json", f"blobs/sha256/{HEX}"])
def test_ids_of_archived_images_are_those_of_their_configurations(tmp_path: Path, config: str) -> None:
    manifest = [
        {"Config": config, "RepoTags": ["a:1", "b:2"], "Layers": []},
        {"Config": config, "RepoTags": None},
    ]
    assert archived_images(archive(tmp_path, manifest)) == {"a:1": f"sha256:{HEX}", "b:2": f"sha256:{HEX}"}


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"[1]", b"{}", b"[null]", [{"RepoTags": ["a"]}], [{"Config": 1, "RepoTags": ["a"]}], b"[" * 100_000],
)
def test_other_archives_are_refused_by_name(tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(LabError, match=r"archive\.tar: .* is accepted|archive\.tar: its images have no names"):
        archived_images(archive(tmp_path, manifest))


def test_files_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"text" * 1000)
    tarfile.open(tmp_path / "empty.tar", "w").close()
    for name in ("text", "empty.tar"):
        with pytest.raises(LabError, match=f"{name}: .*an archive of `docker save` is accepted"):
            archived_images(tmp_path / name)


def node(name: str, ready: str) -> Node:
    """Return a node with a condition Ready."""
    status = NodeStatus(conditions=(Condition(type="Ready", status=ready),))
    return replace(Node(metadata=ObjectMeta(name=name)), status=status)


def test_images_go_to_nodes_that_are_ready_or_named() -> None:
    nodes = [node("b", "True"), node("a", "True"), node("down", "Unknown")]
    assert chosen_nodes(nodes, []) == ["a", "b"]
    assert chosen_nodes(nodes, ["down", "down"]) == ["down"]
    with pytest.raises(InputError, match="--node c: there is no such node; accepted: a, b, down"):
        chosen_nodes(nodes, ["a", "c"])
    with pytest.raises(InputError, match="no node is ready"):
        chosen_nodes([node("down", "False")], [])
