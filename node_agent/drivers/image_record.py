"""When images were last used, in a file, so that a restart does not make all of them look the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from node_agent.garbage import Use
from reconcile.errors import NotReady

log = logging.getLogger(__name__)


def read(path: Path) -> dict[str, Use]:
    """By image id; nothing when there is no file, or none that can be read: then all images were detected just now."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Use])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the record of images begins anew", extra={"file": path, "error": error})
        return {}


def write(path: Path, record: Mapping[str, Use]) -> None:
    """The file is the old or the new one, never a part. Raises NotReady."""
    beside = path.with_suffix(".new")
    try:
        beside.write_bytes(msgspec.json.encode(record))
        os.replace(beside, path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None
