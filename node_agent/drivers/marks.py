"""Marks of containers in their pod's directory: what Docker's labels, which never change, cannot tell.

`STATE/pods/UID/marks/CONTAINER.WORD`; the content is text. They go with the directory of the pod.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from node_agent.containers import Host, pod_dir
from reconcile.errors import NotReady


class Mark(NamedTuple):
    """One word about one container."""

    container: str
    word: str


def read(host: Host, uid: str) -> dict[Mark, str]:
    """All marks of a pod and their texts. Raises NotReady."""
    found = {}
    try:
        for path in _directory(host, uid).iterdir():
            container, _, word = path.name.partition(".")
            if not word.endswith("~"):
                found[Mark(container, word)] = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NotReady(f"{_directory(host, uid)}: {error.strerror}") from None
    return found


def write(host: Host, uid: str, mark: Mark, text: str = "") -> None:
    """Set a mark, whole or not at all. Raises NotReady, also when the pod has no directory any more."""
    directory = _directory(host, uid)
    path = directory / f"{mark.container}.{mark.word}"
    half = path.with_name(f"{path.name}~")
    try:
        directory.mkdir(exist_ok=True)
        half.write_text(text)
        half.replace(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def remove(host: Host, uid: str, mark: Mark) -> None:
    """Take a mark away; one that is not there is no error. Raises NotReady."""
    path = _directory(host, uid) / f"{mark.container}.{mark.word}"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def _directory(host: Host, uid: str) -> Path:
    return Path(pod_dir(host, uid)) / "marks"
