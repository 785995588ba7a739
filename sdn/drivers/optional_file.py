"""A file that is there, whole, or not there at all."""

from __future__ import annotations

from pathlib import Path

from reconcile.errors import Refused


class OptionalFile:
    """`path` may be empty: then there is never a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None

    def show(self, text: str | None) -> bool:
        """Put the file there with this text, or take it away; whether that changed anything. Raises Refused."""
        if self._path is None:
            return False
        try:
            return self._remove(self._path) if text is None else self._write(self._path, text)
        except OSError as error:
            raise Refused(f"{self._path}: {error.strerror}") from None

    def _remove(self, path: Path) -> bool:
        was_there = path.exists()
        path.unlink(missing_ok=True)
        return was_there

    def _write(self, path: Path, text: str) -> bool:
        if path.exists() and path.read_text() == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(text)
        fresh.replace(path)
        return True
