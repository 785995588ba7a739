"""The archive: bounded, readable by its owner only, each member without secrets. Driver."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from api.meta.redaction import KnownValues, redact_text
from cli.command import InputError

MAX_MEMBER, MAX_TOTAL = 4 << 20, 64 << 20
"""Bytes of one member, and of all members, before they are compressed."""


class Archive:
    """A new archive; use it as `with Archive(path, known) as archive`. `known` are secret values.

    A member that is too long keeps its end: of logs that is the newest part.
    """

    def __init__(self, path: Path, folder: str, known: Iterable[bytes]) -> None:
        self._path = path
        self._folder = folder
        self._known = KnownValues(known)
        self._size = 0
        self._notes: list[str] = []

    def __enter__(self) -> Archive:
        try:
            opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}; a new file is accepted") from None
        self._file = os.fdopen(opened, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                self._write("notes.txt", "".join(f"{note}\n" for note in self._notes).encode())
                self._tar.close()
        finally:
            self._file.close()
            if kind is not None:
                self._path.unlink(missing_ok=True)

    def note(self, text: str) -> None:
        """Add a line to notes.txt: what is missing, and why."""
        self._notes.append(redact_text(text.encode(errors="replace"), self._known).decode(errors="replace"))

    def add(self, name: str, content: bytes) -> None:
        """Add a member, without secrets. What is too long is cut, and noted."""
        # Cut before and after: redaction takes time with the length, and a cut must not leave a part of a secret.
        shown = redact_text(content[-2 * MAX_MEMBER :], self._known)[-MAX_MEMBER:]
        if len(content) > MAX_MEMBER:
            # The first line may be a part of one.
            shown = shown.partition(b"\n")[2]
            self.note(f"{name}: only the end")
        content = shown
        if self._size + len(content) > MAX_TOTAL:
            self.note(f"{name}: left out, the archive is full")
            return
        self._size += len(content)
        self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
        self._tar.addfile(member, io.BytesIO(content))
