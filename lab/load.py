"""Puts images of this machine onto the nodes of a lab, and builds images there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.archives import (
    COPY_SECONDS,
    Archive,
    check_images,
    docker_message,
    is_pulled_always,
    is_tagged_name,
    opened,
    saved_archive,
)
from lab.process import LabError, Progress, run
from lab.topology import Lab, LabNode

PARALLEL_LOADS = 4


def load(lab: Lab, images: Sequence[str], progress: Progress) -> None:
    """Load images into the Docker of every node. Raises LabError; nothing is loaded if an image does not exist.

    `images` are names of images in the Docker of this machine, or files that `docker save` has written.
    """
    check_images(images)
    for image in images:
        with opened(image, lab.root) as archive:
            _load_archive(lab.nodes, archive, progress)
            warn_of_pulls(archive.ids, progress)


def build(lab: Lab, folder: Path, image: str, progress: Progress) -> None:
    """Build an image from the folder of a Dockerfile, on the first node, and copy it to the others. Raises LabError."""
    refuse_bad_name(image)
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
        with saved_archive(image, lab.root, _host(first)) as archive:
            _load_archive(others, archive, progress)
    warn_of_pulls([image], progress)


def refuse_bad_name(image: str) -> None:
    """Raise LabError for a name that no image can get. Pure."""
    if is_tagged_name(image):
        return
    name, colon, tag = image.rpartition(":")
    lower = f"{name.lower()}{colon}{tag}" if colon and "/" not in tag else image.lower()
    if is_tagged_name(lower):
        raise LabError(f"{image}: the name of an image has no capital letters; {lower} is accepted")
    accepted = "NAME:TAG is accepted, such as app:v1 or 127.0.0.1:5000/team/app:v1"
    raise LabError(f"{image!r} cannot be the name of an image; {accepted}")


def _host(node: LabNode) -> tuple[str, ...]:
    return (f"--host=unix://{node.docker_socket}",)


def _load_archive(nodes: Iterable[LabNode], archive: Archive, progress: Progress) -> None:
    progress(f"loading {archive.title}, {archive.size / 1e6:.0f} MB")

    def load_on(node: LabNode) -> None:
        try:
            run("docker", *_host(node), "load", f"--input={archive.path}", seconds=COPY_SECONDS)
        except LabError as error:
            raise LabError(f"{node.name} did not get {archive.title}: {docker_message(error)}") from None
        progress(f"{node.name} has {archive.title}")

    with ThreadPoolExecutor(PARALLEL_LOADS) as executor:
        list(executor.map(load_on, nodes))


def warn_of_pulls(images: Iterable[str], progress: Progress) -> None:
    """Say which images pods ask a registry for although they are on the node."""
    for image in filter(is_pulled_always, images):
        progress(f"pods with {image} need imagePullPolicy: IfNotPresent, or another tag than latest")
