"""Watches the ConfigMaps, Secrets, claims and Services that this node's pods refer to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api.client.client import Client
from api.client.informer import Informer
from api.core.config import ConfigMap
from api.core.pod import Pod
from api.core.references import Reference
from api.core.services import Service
from api.meta.types import Object
from api.validation.static_pods import is_static
from reconcile.errors import NotReady

Objects = Mapping[Reference, Object]
"""Objects by reference. Objects that do not exist are missing."""

FIRST_SYNC_SECONDS = 0.5
"""Time that a starting pod waits for the first list of its objects. A later list wakes the pod's worker.
A list that fails does not: the worker reports its error at its next sync."""

ROOT_CA = "kube-root-ca.crt"
ROOT_CA_LINGER_SECONDS = 60.0
"""Time for which the ConfigMap to which every pod with a token refers is still watched after its last user."""


class NotSynced(NotReady):
    """The state of an object that was not listed yet."""


@dataclass(slots=True)
class _Watched:
    informer: Informer[Object]
    task: asyncio.Task[None]
    users: set[str]
    synced: asyncio.Event


class ObjectCache:
    """ConfigMaps, Secrets and claims that pods of this node refer to, each with a watch of its own.

    `on_change` is called with the UID of a pod when an object to which it refers has changed. `spawn` starts a task.
    """

    def __init__(
        self,
        client: Client,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_change: Callable[[str], None],
    ) -> None:
        self._client = client
        self._spawn = spawn
        self._on_change = on_change
        self._watched: dict[Reference, _Watched] = {}
        self._needed: dict[str, frozenset[Reference]] = {}

    def set_needed(self, uid: str, references: Iterable[Reference]) -> None:
        """Watch these objects for a pod, and stop watching others that only this pod needed."""
        needed = frozenset(references)
        before = self._needed.pop(uid, frozenset())
        if needed:
            self._needed[uid] = needed
        for reference in needed - before:
            self._watch(reference).users.add(uid)
        for reference in before - needed:
            self._watched[reference].users.discard(uid)
            if reference.kind is ConfigMap and reference.name == ROOT_CA:
                asyncio.get_running_loop().call_later(ROOT_CA_LINGER_SECONDS, self._drop_unused, reference)
            else:
                self._drop_unused(reference)

    async def wait_until_synced(self, references: Iterable[Reference]) -> None:
        """Wait until all of these objects were listed, at most FIRST_SYNC_SECONDS. `set_needed` must name them."""
        events = [
            self._watched[reference].synced for reference in references if not self._watched[reference].synced.is_set()
        ]
        if events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SYNC_SECONDS):
                    for synced in events:
                        await synced.wait()

    def get(self, references: Iterable[Reference]) -> Objects:
        """Return those of these objects that exist. `set_needed` must name them.

        Raises NotSynced while one of them was not listed yet. Raises NotReady if the API server refuses the list or
        does not answer.
        """
        objects: dict[Reference, Object] = {}
        for reference in references:
            informer = self._watched[reference].informer
            if not informer.synced and informer.last_error:
                raise NotReady(f"{reference}: {informer.last_error}")
            if not informer.synced:
                raise NotSynced(f"{reference} is being read from the API server")
            obj = informer.items.get((reference.namespace, reference.name))
            if obj is not None:
                objects[reference] = obj
        return objects

    def get_synced(self, references: Iterable[Reference]) -> Objects:
        """Return those of these objects that exist and were listed."""
        synced = (
            reference
            for reference in references
            if reference in self._watched and self._watched[reference].informer.synced
        )
        return self.get(synced)

    def _watch(self, reference: Reference) -> _Watched:
        if reference not in self._watched:
            informer: Informer[Object] = Informer(
                self._client,
                reference.kind,
                namespace=reference.namespace,
                field_selector=f"metadata.name={reference.name}",
                on_change=lambda: self._changed(reference),
            )
            self._watched[reference] = _Watched(informer, self._spawn(informer.run()), set(), asyncio.Event())
        return self._watched[reference]

    def _drop_unused(self, reference: Reference) -> None:
        watched = self._watched.get(reference)
        if watched is not None and not watched.users:
            watched.task.cancel()
            del self._watched[reference]

    def _changed(self, reference: Reference) -> None:
        watched = self._watched.get(reference)
        if watched is None:
            return
        watched.synced.set()
        if any(getattr(obj, "immutable", None) for obj in watched.informer.items.values()):
            watched.task.cancel()
        for uid in watched.users:
            self._on_change(uid)


class ServiceLister:
    """The services of the cluster. `on_first_sync` is called once, after the first list.

    An API server that does not know the kind has no services.
    """

    def __init__(self, client: Client, on_first_sync: Callable[[], None]) -> None:
        # No field selector: older API servers support none for services (Kubernetes 1.20: 400).
        self.informer = Informer(client, Service, on_change=self._changed, optional=True)
        self._on_first_sync = on_first_sync
        self._synced = False

    def list(self, pod: Pod) -> Collection[Service]:
        """Return the services. Raises NotSynced before the first list, NotReady if the API server refuses it.

        A static pod does not wait for the list, because the API server may run in it.
        """
        if not self.informer.synced and not is_static(pod):
            if self.informer.last_error:
                raise NotReady(f"services: {self.informer.last_error}")
            raise NotSynced("services are being read from the API server")
        return self.informer.items.values()

    def _changed(self) -> None:
        if not self._synced:
            self._synced = True
            self._on_first_sync()
