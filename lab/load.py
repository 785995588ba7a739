"""Puts images of this machine onto the nodes of a lab, and builds images there."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.process import LabError, Progress, run
from lab.topology import Lab, LabNode

COPY_SECONDS = 1800.0
"""Longest time that one image may take from or to one Docker: large images on slow disks take minutes."""

PARALLEL_LOADS = 4


def load(lab: Lab, images: Sequence[str], progress: Progress) -> None:
    """Load images into the Docker of every node. Raises LabError.

    `images` are names of images in the Docker of this machine, or files that `docker save` has written.
    """
    for image in images:
        if Path(image).is_file():
            _load_archive(lab.nodes, Path(image), image, progress)
        else:
            _copy(lab, (), image, lab.nodes, progress)
    warn_of_pulls(images, progress)


def build(lab: Lab, folder: Path, image: str, progress: Progress) -> None:
    """Build an image from the folder of a Dockerfile, on the first node, and copy it to the others. Raises LabError."""
    repository, colon, tag = image.partition(":")
    if repository != repository.lower():
        raise LabError(
            f"{image}: the name of an image has no capital letters; {repository.lower()}{colon}{tag} is accepted"
        )
    if not (folder / "Dockerfile").is_file():
        raise LabError(f"{folder} has no file Dockerfile; a folder with one is accepted")
    first, *others = lab.nodes
    progress(f"building {image} on {first.name}")
    # Nodes have no network of Docker's own, so a build uses that of the node.
    command = ("docker", *_host(first), "build", "--network=host", f"--tag={image}", str(folder))
    if subprocess.run(command, check=False).returncode:
        raise LabError(f"docker build of {folder} failed on {first.name}; its last lines say why")
    progress(f"{first.name} has {image}")
    if others:
        _copy(lab, _host(first), image, others, progress)
    warn_of_pulls([image], progress)


def _host(node: LabNode) -> tuple[str, ...]:
    return (f"--host=unix://{node.docker_socket}",)


def _copy(lab: Lab, source: Sequence[str], image: str, nodes: Iterable[LabNode], progress: Progress) -> None:
    """Copy an image to nodes from the Docker that the options `source` name."""
    with saved_archive(image, lab.root, source) as archive:
        _load_archive(nodes, archive, image, progress)


@contextlib.contextmanager
def saved_archive(image: str, folder: Path | None = None, source: Sequence[str] = ()) -> Iterator[Path]:
    """Yield an archive of an image of this machine's Docker, or of the Docker that the options `source` name.

    It is a temporary file in `folder`. Raises LabError.
    """
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tar") as archive:
        try:
            run("docker", *source, "save", f"--output={archive.name}", image, seconds=COPY_SECONDS)
        except LabError as error:
            raise LabError(
                f"{image} is neither a file nor an image in the Docker of this machine "
                f"({_last_line(error)}); an image's name, or a file of `docker save`, is accepted"
            ) from None
        yield Path(archive.name)


def _last_line(error: LabError) -> str:
    """Return what Docker said, without the command that was run."""
    return str(error).strip().splitlines()[-1].rpartition("Error response from daemon: ")[2]


def _load_archive(nodes: Iterable[LabNode], archive: Path, image: str, progress: Progress) -> None:
    progress(f"loading {image}, {archive.stat().st_size / 1e6:.0f} MB")

    def load_on(node: LabNode) -> None:
        run("docker", *_host(node), "load", f"--input={archive}", seconds=COPY_SECONDS)
        progress(f"{node.name} has {image}")

    with ThreadPoolExecutor(PARALLEL_LOADS) as executor:
        list(executor.map(load_on, nodes))


def warn_of_pulls(images: Iterable[str], progress: Progress) -> None:
    """Say which images pods ask a registry for although they are on the node."""
    for image in images:
        if not Path(image).is_file() and image.rpartition(":")[2] in {"latest", image}:
            progress(f"pods with {image} need imagePullPolicy: IfNotPresent, or another tag than latest")
