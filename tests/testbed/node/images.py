"""Images built from the toolbox with other files and another configuration."""

from __future__ import annotations

import io
import tarfile

from lab import images
from tests.testbed.node.single_node import SingleNode


def add_image(node: SingleNode, name: str, *changes: str, files: dict[str, str] | None = None) -> None:
    """Put it into the node's Docker; `changes` are lines of a Dockerfile, `files` their contents by path."""
    path = node.root / "image.tar"
    with tarfile.open(fileobj=io.BytesIO(images.toolbox())) as toolbox, tarfile.open(path, "w") as archive:
        for entry in toolbox:
            if entry.name not in (files or {}):
                archive.addfile(entry, toolbox.extractfile(entry) if entry.isfile() else None)
        for file, text in (files or {}).items():
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    node.docker("import", *(f"--change={change}" for change in ("ENV PATH=/bin", *changes)), str(path), name)
