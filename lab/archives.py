"""Images that a command is given: names of this machine's Docker, or files of `docker save`."""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.process import LabError, run

COPY_SECONDS = 1800.0
"""Longest time that one image may take from or to one Docker: large images on slow disks take minutes."""

MAX_MANIFEST_BYTES = 1 << 20
"""Longest accepted manifest.json of an archive. It has a line for each layer."""

MAX_NAME = 255
ARCHIVE_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

# The grammar of names: https://pkg.go.dev/github.com/distribution/reference
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:\d)|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
_NAME = rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*"
_TAGGED = re.compile(rf"({_NAME})(?::\w[\w.-]{{0,127}})?", re.ASCII)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Archive:
    """A file of `docker save`: its size in bytes, and the ID of each image by name."""

    path: Path
    size: int
    ids: Mapping[str, str]

    @property
    def title(self) -> str:
        """The names of the images."""
        return ", ".join(self.ids)


def is_tagged_name(image: str) -> bool:
    """Return True for a name that an image can get, with or without a tag. Pure."""
    match = _TAGGED.fullmatch(image)
    return match is not None and len(match[1]) <= MAX_NAME


def is_reference(image: str) -> bool:
    """Return True for a name with or without a tag or digest, or an ID. Pure."""
    return _ID.fullmatch(image) is not None or is_tagged_name(_DIGEST.sub("", image))


def is_pulled_always(image: str) -> bool:
    """Return True if pods ask a registry for an image although it is on the node: the tag is latest. Pure."""
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "@" not in image and (not colon or tag == "latest")


def names_file(word: str) -> bool:
    """Return True if a word of a command line means a file, which may not exist, and not an image."""
    return word.startswith(("/", "./", "../", "~")) or word.endswith(ARCHIVE_NAMES) or Path(word).is_file()


def check_images(words: Iterable[str]) -> None:
    """Check each image, before any is copied. Raises LabError."""
    for word in words:
        if names_file(word):
            read_archive(Path(word))
        elif is_reference(word):
            _docker(word, "image", "inspect", "--format={{.Id}}", word)
        else:
            raise LabError(
                f"{word!r} is neither a file nor the name of an image; a name such as app:v1, or a file of "
                "`docker save`, is accepted"
            )


def read_archive(file: Path) -> Archive:
    """Return what is in a file of `docker save`. Raises LabError."""
    try:
        return Archive(file, file.stat().st_size, archived_images(file))
    except OSError as error:
        found = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise LabError(f"{file} {found}; a file of `docker save`, or an image's name, is accepted") from None


@contextlib.contextmanager
def opened(word: str, folder: Path | None = None) -> Iterator[Archive]:
    """Yield the archive of an image or file. Raises LabError. A temporary file is in `folder`."""
    if names_file(word):
        yield read_archive(Path(word))
    else:
        with saved_archive(word, folder) as archive:
            yield archive


@contextlib.contextmanager
def saved_archive(image: str, folder: Path | None = None, source: Sequence[str] = ()) -> Iterator[Archive]:
    """Yield an archive of an image of this machine's Docker, or of the Docker that the options `source` name.

    It is a temporary file in `folder`. Raises LabError.
    """
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tar") as archive:
        _docker(image, *source, "save", f"--output={archive.name}", image)
        file = Path(archive.name)
        try:
            ids = archived_images(file)
        except LabError:
            found = "is an ID or a digest, so the archive has no name that pods could use"
            raise LabError(f"{image} {found}; the image's name with its tag is accepted") from None
        yield Archive(file, file.stat().st_size, ids)


def _docker(image: str, *words: str) -> None:
    try:
        run("docker", *words, seconds=COPY_SECONDS)
    except LabError as error:
        raise LabError(
            f"{image} is neither a file nor an image in the Docker of this machine "
            f"({docker_message(error)}); an image's name, or a file of `docker save`, is accepted"
        ) from None


def docker_message(error: LabError) -> str:
    """Return what Docker said, without the command that was run."""
    last = str(error).strip().splitlines()[-1]
    for begin in ("Error response from daemon: ", "Error: "):
        if begin in last:
            return last.rpartition(begin)[2]
    return last


def archived_images(archive: Path) -> dict[str, str]:
    """Return the ID of each named image in an archive of `docker save`, compressed or not.

    Raises LabError if the file is not such an archive, or if none of its images has a name; raises OSError.
    """
    try:
        content = tarfile.open(archive)  # noqa: SIM115 - another sentence for what fails later
    except (tarfile.TarError, EOFError):
        raise LabError(f"{archive}: not a tar archive; an archive of `docker save` is accepted") from None
    try:
        with content:
            member = content.extractfile("manifest.json")
            text = b"" if member is None else member.read(MAX_MANIFEST_BYTES + 1)
        images = _images_of_manifest(json.loads(text))
    except (tarfile.TarError, EOFError):
        raise LabError(f"{archive}: the archive is cut off; an archive of `docker save` is accepted") from None
    except KeyError:
        raise LabError(f"{archive}: has no image, or is cut off; an archive of `docker save` is accepted") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LabError(f"{archive}: {error}; an archive of `docker save` is accepted") from None
    if not images:
        raise LabError(f"{archive}: its images have no names; `docker save NAME` keeps the name")
    return images


def _images_of_manifest(manifest: Any) -> dict[str, str]:
    """Return the ID of each named image: that of its configuration, HEX.json or blobs/sha256/HEX."""
    return {
        str(name): f"sha256:{entry['Config'].rpartition('/')[2].removesuffix('.json')}"
        for entry in manifest
        for name in entry["RepoTags"] or ()
    }
