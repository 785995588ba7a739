"""Static pods from a directory of manifests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from node_agent.event_recorder import EventRecorder
from node_agent.sources.directory_watch import DirectoryWatch
from node_agent.sources.static_pods import (
    MAX_MANIFEST_BYTES,
    REJECTED_REASON,
    ManifestOrigin,
    ParsedManifest,
    SourcePods,
    parse_manifest,
    rejection_message,
)

log = logging.getLogger(__name__)

RELIST_SECONDS = 20.0
DEBOUNCE_SECONDS = 0.1
"""Time after a change in which further changes gather, because a program writes a file in several steps."""

EMPTY = ParsedManifest()


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was read last. `error` is the reason if it could not be read."""

    text: str = ""
    manifest: ParsedManifest = EMPTY
    error: str = ""


class FileSource:
    """The pods of all files in a directory, in the order of file names, without hidden files and subdirectories.

    `source` is the origin that the pods' annotations name (file or http). `synced` is True after the first read.
    """

    def __init__(
        self,
        directory: Path,
        node: str,
        source: str,
        on_change: Callable[[], None],
        events: EventRecorder,
    ) -> None:
        self.synced = False
        self._directory = directory
        self._node = node
        self._source = source
        self._on_change = on_change
        self._events = events
        self._files: dict[Path, _File] = {}

    @property
    def source_pods(self) -> tuple[SourcePods, ...]:
        """The pods of each file."""
        return tuple(SourcePods(str(path), file.manifest.pods) for path, file in self._files.items())

    async def run(self) -> None:
        """Read the files, and read them again after changes, until cancelled."""
        directory = self._directory
        if directory.is_file():
            directory = directory.parent
        directory.mkdir(parents=True, exist_ok=True)
        await self.read()
        with DirectoryWatch(directory) as changes:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RELIST_SECONDS):
                        await changes.wait()
                    await asyncio.sleep(DEBOUNCE_SECONDS)
                await self.read()

    async def read(self) -> None:
        """Read every file in a thread, because large files take time."""
        before = self._files
        after = await asyncio.to_thread(self._read_files, before)
        for path, file in after.items():
            if file != before.get(path):
                self._report(path, file, before.get(path, _File()))
        self._files = after
        if after != before or not self.synced:
            self.synced = True
            self._on_change()

    def _read_files(self, before: dict[Path, _File]) -> dict[Path, _File]:
        try:
            entries = [self._directory] if self._directory.is_file() else sorted(self._directory.iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("manifests cannot be listed", extra={"directory": self._directory, "error": error})
            return before
        paths = [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        return {path: self._read_file(path, before.get(path, _File())) for path in paths}

    def _read_file(self, path: Path, previous: _File) -> _File:
        """Read one file. If it cannot be read as text, it keeps its last pods."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_MANIFEST_BYTES + 1)
            if len(content) > MAX_MANIFEST_BYTES:
                return _File(manifest=previous.manifest, error=f"it is larger than {MAX_MANIFEST_BYTES >> 20} MB")
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            return _File(manifest=previous.manifest, error=str(error))
        if text == previous.text and not previous.error:
            return previous
        origin = ManifestOrigin(self._node, self._source, str(path))
        return _File(text, parse_manifest(text, origin, previous.manifest.pods, datetime.now(UTC)))

    def _report(self, path: Path, file: _File, previous: _File) -> None:
        if file.error and file.error != previous.error:
            log.warning("manifest cannot be read", extra={"file": path, "error": file.error})
            self._events.node_event(REJECTED_REASON, f"{path} cannot be read: {file.error}")
        if file.text != previous.text:
            for rejected in file.manifest.rejected:
                log.warning(f"{path} {rejected}")
                self._events.node_event(REJECTED_REASON, rejection_message(str(path), rejected))
