"""The parts that serve API versions of other servers: checks, requests of users, and requests of controllers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from master.registry.aggregated_apis import AggregatedAPIs
from master.server.proxy.aggregated_proxy import AggregatedProxy
from master.server.proxy.api_checks import APIChecks
from master.server.proxy.extension_api_reader import AUTOSCALER, NAMESPACE_CONTROLLER, ExtensionAPIReader
from master.server.proxy.extension_client import ExtensionClient
from master.server.proxy.namespace_contents import NamespaceContents
from master.storage.interface import Storage


class Aggregation:
    """The parts, which share a client certificate. `note_check` is called when a check has found something new,
    `note_contents` when more is known of the contents of a namespace.
    """

    def __init__(
        self,
        storage: Storage,
        apis: AggregatedAPIs,
        extensions: ExtensionClient,
        client_certificate: Path,
        *,
        note_check: Callable[[], None],
        note_contents: Callable[[], None],
    ) -> None:
        self.apis = apis
        self.proxy = AggregatedProxy(apis, extensions, client_certificate)
        self.checks = APIChecks(storage, apis, extensions, client_certificate, note_check)
        self.metrics = ExtensionAPIReader(apis, extensions, client_certificate, AUTOSCALER)
        namespaces = ExtensionAPIReader(apis, extensions, client_certificate, NAMESPACE_CONTROLLER)
        self.namespace_contents = NamespaceContents(storage, apis, namespaces, note_contents)

    async def close(self) -> None:
        """End all work for controllers."""
        await self.namespace_contents.close()
