"""What a node has refused, in the pod's directory: `STATE/pods/UID/rejected`, so that it is not asked again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from node_agent.admission import Rejection
from node_agent.containers import Host, pod_dir
from node_agent.drivers import host as directories
from reconcile.errors import NotReady


def read(where: Host, uid: str) -> Rejection | None:
    """Why the pod was refused; None if it was not. Raises NotReady."""
    path = _path(where, uid)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rejection)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def write(where: Host, uid: str, rejection: Rejection) -> None:
    """Keep it, whole or not at all; it goes with the pod's directory. Raises NotReady."""
    path = _path(where, uid)
    half = path.with_name(f"{path.name}~")
    directories.prepare(where, uid)
    try:
        half.write_bytes(msgspec.json.encode(rejection))
        half.replace(path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def _path(where: Host, uid: str) -> Path:
    return Path(pod_dir(where, uid)) / "rejected"
