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
"""Those of the objects asked for that there are."""

FIRST_SYNC_SECONDS = 0.5
"""So long a pod that is to start waits for the master's first word; later it is woken by that."""

ROOT_CA, LINGER_SECONDS = "kube-root-ca.crt", 60.0
"""The ConfigMap that every pod with a token refers to is followed so long after the last one: the next may be near."""


class NotSynced(NotReady):
    """The master has not yet been heard of an object."""


@dataclass(slots=True)
class _Followed:
    mirror: Informer[Object]
    task: asyncio.Task[None]
    users: set[str]
    heard: asyncio.Event


class ObjectCache:
    """`on_change` is called with the UID of a pod of which an object has changed; `spawn` starts a task."""

    def __init__(
        self,
        client: Client,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_change: Callable[[str], None],
    ) -> None:
        self._client = client
        self._spawn = spawn
        self._on_change = on_change
        self._followed: dict[Reference, _Followed] = {}
        self._needed: dict[str, frozenset[Reference]] = {}

    def need(self, uid: str, wanted: Iterable[Reference]) -> None:
        """Follow these for a pod, and of those it needed before no others."""
        wanted, before = frozenset(wanted), self._needed.pop(uid, frozenset())
        if wanted:
            self._needed[uid] = wanted
        for reference in wanted - before:
            self._follow(reference).users.add(uid)
        for reference in before - wanted:
            self._followed[reference].users.discard(uid)
            if reference.kind is ConfigMap and reference.name == ROOT_CA:
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._drop_unused, reference)
            else:
                self._drop_unused(reference)

    async def hear(self, wanted: Iterable[Reference]) -> None:
        """Wait until the master has spoken of each of these, all of them needed before; not for long."""
        unheard = [self._followed[one].heard for one in wanted if not self._followed[one].heard.is_set()]
        if unheard:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SYNC_SECONDS):
                    for heard in unheard:
                        await heard.wait()

    def found(self, wanted: Iterable[Reference]) -> Objects:
        """What there is of these, all of them needed before.

        Raises Unread while the master has not yet said of each whether there is such an object, NotReady if it
        refuses to say or does not answer.
        """
        found: dict[Reference, Object] = {}
        for reference in wanted:
            mirror = self._followed[reference].mirror
            if not mirror.synced and mirror.last_error:
                raise NotReady(f"{reference}: {mirror.last_error}")
            if not mirror.synced:
                raise NotSynced(f"{reference} is being read from the master")
            item = mirror.items.get((reference.namespace, reference.name))
            if item is not None:
                found[reference] = item
        return found

    def known(self, wanted: Iterable[Reference]) -> Objects:
        """What is known of these; nothing of those of which the master has not been heard."""
        heard = (one for one in wanted if one in self._followed and self._followed[one].mirror.synced)
        return self.found(heard)

    def _follow(self, reference: Reference) -> _Followed:
        if reference not in self._followed:
            mirror: Informer[Object] = Informer(
                self._client,
                reference.kind,
                namespace=reference.namespace,
                field_selector=f"metadata.name={reference.name}",
                on_change=lambda: self._changed(reference),
            )
            self._followed[reference] = _Followed(mirror, self._spawn(mirror.run()), set(), asyncio.Event())
        return self._followed[reference]

    def _drop_unused(self, reference: Reference) -> None:
        followed = self._followed.get(reference)
        if followed is not None and not followed.users:
            followed.task.cancel()
            del self._followed[reference]

    def _changed(self, reference: Reference) -> None:
        followed = self._followed.get(reference)
        if followed is None:
            return
        followed.heard.set()
        if any(getattr(item, "immutable", None) for item in followed.mirror.items.values()):
            followed.task.cancel()
        for uid in followed.users:
            self._on_change(uid)


class ServiceLister:
    """`on_first_sync` is called once, when it is known which there are. An API server without services has none."""

    def __init__(self, client: Client, on_first_sync: Callable[[], None]) -> None:
        # Without a field selector: API servers that are older know none for services (Kubernetes 1.20: 400).
        self.informer = Informer(client, Service, on_change=self._changed, optional=True)
        self._on_first_sync = on_first_sync
        self._heard = False

    def known(self, pod: Pod) -> Collection[Service]:
        """Those there are. Raises Unread before the master has been heard, NotReady if it refuses to say.

        A static pod does not wait for the master: it may be what the master runs in.
        """
        if not self.informer.synced and not is_static(pod):
            if self.informer.last_error:
                raise NotReady(f"services: {self.informer.last_error}")
            raise NotSynced("services are being read from the master")
        return self.informer.items.values()

    def _changed(self) -> None:
        if not self._heard:
            self._heard = True
            self._on_first_sync()
