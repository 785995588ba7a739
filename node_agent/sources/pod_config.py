"""All pod sources together: file, URL, socket, API server (kubelet: PodConfig)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from api.core.pod import Pod
from node_agent.config import Settings
from node_agent.event_recorder import EventRecorder
from node_agent.sources.api_server import ApiServerSource
from node_agent.sources.file import FileSource
from node_agent.sources.local_api import LocalApiSource
from node_agent.sources.static_pods import DuplicatePod, merge_sources, namespaced_name
from node_agent.sources.url import UrlSource
from reconcile.listeners import Listeners

log = logging.getLogger(__name__)


class PodConfig:
    """The pods of all sources. Of pods with the same name the first counts: directory, URL, socket, API server.

    `changed` notifies when a source of static pods has changed.
    """

    def __init__(self, settings: Settings, api_server: ApiServerSource, events: EventRecorder) -> None:
        self.changed = Listeners()
        self._events = events
        self._duplicates: frozenset[str] = frozenset()
        node = settings.node_name
        submitted = Path(settings.state_dir) / "submitted"
        on_change = self.changed.notify
        self._sources: list[FileSource | UrlSource | LocalApiSource | ApiServerSource] = [
            FileSource(Path(settings.manifest_dir), node, "file", on_change, events),
            LocalApiSource(Path(settings.socket), submitted, node, on_change, events),
            api_server,
        ]
        if settings.manifest_url:
            url = UrlSource(settings.manifest_url, settings.manifest_url_headers, node, on_change, events)
            self._sources.insert(1, url)

    def seen_all_sources(self) -> bool:
        """Return whether every source was read at least once. Nothing is cleaned up before."""
        return all(source.synced for source in self._sources)

    def pods(self) -> dict[str, Pod]:
        """Return the pods to run, by UID. Record an event for each duplicate that is new since the last call."""
        pods, duplicates = merge_sources(source_pods for source in self._sources for source_pods in source.source_pods)
        self._record_duplicates(duplicates)
        return pods

    async def run(self) -> None:
        """Read all sources until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(source.run())

    def _record_duplicates(self, duplicates: tuple[DuplicatePod, ...]) -> None:
        for duplicate in duplicates:
            if duplicate.pod.metadata.uid in self._duplicates:
                continue
            name = "/".join(namespaced_name(duplicate.pod))
            fields = {"pod": name, "source": duplicate.location, "first_source": duplicate.first_location}
            log.warning("duplicate pod ignored", extra=fields)
            message = f"Duplicate pod name, ignoring that from {duplicate.location}: {duplicate.first_location} has it"
            self._events.pod_event(duplicate.pod, "FailedValidation", message)
        self._duplicates = frozenset(duplicate.pod.metadata.uid for duplicate in duplicates)
