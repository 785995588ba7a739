"""All pod sources together: file, URL, socket, API server (kubelet: PodConfig)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from node_agent.config import Settings
from node_agent.sources.file import FileSource
from node_agent.sources.local_api import LocalApiSource
from node_agent.sources.static_pods import SourcePods
from node_agent.sources.url import UrlSource


class PodConfig:
    """In the order in which the first of equal names counts: directory, URL, socket.

    `tell` tells an event about the node (reason, message).
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None], tell: Callable[[str, str], None]) -> None:
        node = settings.node_name
        folder = Path(settings.state_dir) / "submitted"
        self._sources: list[FileSource | UrlSource | LocalApiSource] = [
            FileSource(Path(settings.manifest_dir), node, "file", on_change, tell),
            LocalApiSource(Path(settings.socket), folder, node, on_change, tell),
        ]
        if settings.manifest_url:
            headers = settings.manifest_url_headers
            self._sources.insert(1, UrlSource(settings.manifest_url, headers, node, on_change, tell))

    @property
    def seen(self) -> bool:
        """Whether every source has spoken once: before that nothing is cleaned up."""
        return all(source.seen for source in self._sources)

    @property
    def offers(self) -> tuple[SourcePods, ...]:
        """The pods of every place."""
        return tuple(offer for source in self._sources for offer in source.offers)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(source.run())
