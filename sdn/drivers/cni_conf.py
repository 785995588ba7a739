"""The file that tells container runtimes of the pod network; it is there only while pods can be attached."""

from __future__ import annotations

import json
from pathlib import Path

FILE = "10-podlane.conflist"


class CniConf:
    """A network configuration list in `directory` that points to the daemon's `socket`; no directory: none."""

    def __init__(self, directory: str, socket: str) -> None:
        self._file = Path(directory) / FILE if directory else None
        plugin = {"type": "podlane-cni", "socket": socket}
        self._text = json.dumps({"cniVersion": "1.0.0", "name": "podlane", "plugins": [plugin]}, indent=2) + "\n"

    def show(self, ready: bool) -> None:
        """Put the file there, whole, or take it away. Raises OSError."""
        if self._file is None:
            return
        if not ready:
            self._file.unlink(missing_ok=True)
        elif not self._file.exists() or self._file.read_text() != self._text:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._file.with_suffix(".new")
            fresh.write_text(self._text)
            fresh.replace(self._file)
