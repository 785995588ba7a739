"""The API versions that other servers serve (APIServices with a service), as they are stored and as they were found.

Belongs to one event loop. Without such an APIService everything here is empty, and nothing is watched but APIServices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from api.core.endpoints import Endpoints
from api.core.services import Service
from master.admission.webhooks.calls import ServiceTarget
from master.resources.api_services import APIService, is_kept, local_group_versions
from master.resources.client_config import HTTPS_PORT
from master.resources.metrics import METRICS_GROUP
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage, WatchEvent
from reconcile.exposition import MetricFamily, format_labels, gauge

APIS = group_resource(APIService)


@dataclass(frozen=True, slots=True)
class Backend:
    """An API version and its server, as the spec of an APIService says. `uid` is that of the APIService."""

    name: str
    uid: str
    group: str
    version: str
    service: ServiceTarget
    ca_bundle: bytes
    is_verified: bool
    group_priority: int
    version_priority: int

    @property
    def path(self) -> str:
        """Return the path of the version, below which its resources are."""
        return f"/apis/{self.group}/{self.version}"

    @property
    def is_local(self) -> bool:
        """Return whether this server has the version, too."""
        return (self.group, self.version) in local_group_versions()

    def url(self, path: str) -> str:
        """Return the URL of a path, which is percent-encoded, as messages show it."""
        return f"https://{self.service.server_name}:{self.service.port}{path}"


@dataclass(frozen=True, slots=True)
class Availability:
    """The condition Available, as a check has found it. `backend` is what was checked."""

    backend: Backend
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class FoundResource:
    """A resource of an aggregated API that clients can delete."""

    plural: str
    kind: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a server said about a version. `resources` is the JSON of the list in aggregated discovery.

    `deletable` are the resources in namespaces whose objects can be listed and deleted. `openapi_hash` is that of the
    OpenAPI document of the version; empty if there is none.
    """

    digest: str = ""
    resources: bytes = b"[]"
    deletable: tuple[FoundResource, ...] = ()
    openapi_hash: str = ""


NOTHING_DISCOVERED = Discovered()


@dataclass(frozen=True, slots=True)
class AggregatedVersion:
    """An aggregated API version as discovery shows it.

    `is_current` is whether the server has answered the last question. `openapi_hash` is empty if it has no document.
    """

    group: str
    version: str
    group_priority: int = 1000
    version_priority: int = 100
    resources: bytes = b"[]"
    is_current: bool = True
    openapi_hash: str = ""


@dataclass(frozen=True, slots=True)
class RemoteContents:
    """What a namespace that is being deleted still has on other servers.

    `remaining` are (resource.group, number of objects), `finalizers` (finalizer, number of objects).
    `discovery_failures` say which versions cannot be asked, `failures` what could not be deleted.
    """

    remaining: tuple[tuple[str, int], ...] = ()
    finalizers: tuple[tuple[str, int], ...] = ()
    discovery_failures: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


NO_CONTENTS = RemoteContents()

REMOTE_METRICS_GROUPS = frozenset((METRICS_GROUP, "custom.metrics.k8s.io", "external.metrics.k8s.io"))
"""Groups without objects, whatever their servers say. Deleting a namespace does not wait for them."""


def backend_of(api: APIService) -> Backend | None:
    """Return the server of an APIService; None for this one.

    The groups of this server stay here, although a store of a former version may say otherwise.
    """
    spec = api.spec
    if spec.service is None or is_kept(spec.group):
        return None
    return Backend(
        api.metadata.name,
        api.metadata.uid,
        spec.group,
        spec.version,
        ServiceTarget(spec.service.namespace, spec.service.name, spec.service.port or HTTPS_PORT),
        spec.ca_bundle,
        not spec.insecure_skip_tls_verify,
        spec.group_priority_minimum,
        spec.version_priority,
    )


class AggregatedAPIs:
    """The versions that other servers serve at this moment. `load` reads them, and follows later changes."""

    def __init__(self, storage: Storage) -> None:
        self._store = storage
        self._backends: dict[tuple[str, str], Backend] = {}
        self._available: set[str] = set()
        self._discovered: dict[str, Discovered] = {}
        self._stale: set[str] = set()
        self._checked: dict[str, Availability] = {}
        self._listeners: list[Callable[[], None]] = []

    def load(self) -> None:
        """Read the APIServices, and follow their changes from now on."""
        for record in self._store.list(APIS):
            self._follow(record.object)
        self._store.watch(APIS, self._note)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of a server or of its availability."""
        self._listeners.append(listener)

    def _note(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._forget(event.record.key.name)
        else:
            self._follow(event.record.object)

    def _follow(self, api: APIService) -> None:
        name, backend = api.metadata.name, backend_of(api)
        if backend is None:
            self._forget(name)
            return
        key = backend.group, backend.version
        is_available = api.available is not None and api.available.status == "True"
        if self._backends.get(key) == backend and (name in self._available) == is_available:
            return
        known = self._backends.get(key)
        if known is not None and (known.uid, known.service) != (backend.uid, backend.service):
            self._discovered.pop(name, None)
        self._backends[key] = backend
        (self._available.add if is_available else self._available.discard)(name)
        self._changed()

    def _forget(self, name: str) -> None:
        known = next((key for key, backend in self._backends.items() if backend.name == name), None)
        if known is None:
            return
        del self._backends[known]
        self._available.discard(name)
        self._stale.discard(name)
        for found in (self._discovered, self._checked):
            found.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    # --- what is served -----------------------------------------------------------------------------------------------

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Return all servers by the name of their APIService."""
        return {backend.name: backend for backend in self._backends.values()}

    def is_available(self, backend: Backend) -> bool:
        """Return whether requests are sent to a server."""
        return backend.name in self._available

    def at(self, group: str, version: str) -> Backend | None:
        """Return the server to which requests for a version go; None for this one.

        A version that this server has, too, is served elsewhere only while the other server is available.
        """
        if not self._backends:
            return None
        backend = self._backends.get((group, version))
        return None if backend is None or not self._is_routed(backend) else backend

    def _is_routed(self, backend: Backend) -> bool:
        return backend.name in self._available or not backend.is_local

    def holders(self) -> tuple[Backend, ...]:
        """Return the servers that have, or may have, objects in namespaces."""
        return tuple(
            backend
            for backend in self._backends.values()
            if backend.group not in REMOTE_METRICS_GROUPS
            and (not self.discovered(backend.name).digest or self.discovered(backend.name).deletable)
        )

    def versions(self) -> tuple[AggregatedVersion, ...]:
        """Return the versions for discovery. One that does not answer stays, as stale."""
        return tuple(
            AggregatedVersion(
                backend.group,
                backend.version,
                backend.group_priority,
                backend.version_priority,
                found.resources,
                backend.name in self._available and backend.name not in self._stale and bool(found.digest),
                found.openapi_hash,
            )
            for backend in self._backends.values()
            if self._is_routed(backend)
            for found in (self._discovered.get(backend.name, NOTHING_DISCOVERED),)
        )

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of kube-aggregator, if there are APIs of other servers."""
        if self._backends:
            yield gauge(
                "aggregator_unavailable_apiservice",
                "Whether an APIService with a service is unavailable: 0 or 1.",
                {format_labels(name=name): int(name not in self._available) for name in sorted(self.backends)},
            )

    # --- what was found -----------------------------------------------------------------------------------------------

    def discovered(self, name: str) -> Discovered:
        """Return what the server of an APIService has last said."""
        return self._discovered.get(name, NOTHING_DISCOVERED)

    def availability(self, name: str) -> Availability | None:
        """Return what the last check of an APIService has found; None before it."""
        return self._checked.get(name)

    def note_check(self, found: Availability, discovered: Discovered | None) -> bool:
        """Keep the result of a check; `discovered` is None if the server did not say. Return whether it is a new one.

        A result for a former state of the APIService is ignored.
        """
        backend = found.backend
        if self._backends.get((backend.group, backend.version)) != backend:
            return False
        if discovered is None:
            self._stale.add(backend.name)
        else:
            self._stale.discard(backend.name)
            self._discovered[backend.name] = discovered
        is_new = self._checked.get(backend.name) != found
        self._checked[backend.name] = found
        return is_new


def service_problem(store: Storage, backend: Backend) -> tuple[str, str] | None:
    """Return (reason, message) if the service of an API has no port or no ready address; else None."""
    service, where = backend.service, f'service/{backend.service.name} in "{backend.service.namespace}"'
    record = store.get_uncommitted(Key(group_resource(Service), service.namespace, service.name))
    if record is None:
        return "ServiceNotFound", f"{where} is not present"
    port = next((port for port in record.object.spec.ports if port.port == service.port), None)
    if record.object.spec.type == "ExternalName":
        return None
    if port is None:
        return "ServicePortError", f"{where} is not listening on port {service.port}"
    endpoints = store.get_uncommitted(Key(group_resource(Endpoints), service.namespace, service.name))
    if endpoints is None:
        return "EndpointsNotFound", f"cannot find endpoints for {where}"
    if not any(
        subset.addresses and any(known.name == port.name for known in subset.ports)
        for subset in endpoints.object.subsets
    ):
        return "MissingEndpoints", f'endpoints for {where} have no addresses with port name "{port.name}"'
    return None
