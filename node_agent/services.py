"""The services of the cluster, followed as a whole: containers are told of those of their namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection

from api.client import Client
from api.mirror import Mirror
from api.objects import Pod
from api.services import Service
from api.static_pods import is_static
from node_agent.references import Unread
from reconcile.errors import NotReady


class Services:
    """`on_first` is called once, when it is known which there are. An API server without services has none."""

    def __init__(self, client: Client, on_first: Callable[[], None]) -> None:
        # Without a field selector: API servers that are older know none for services (Kubernetes 1.20: 400).
        self.mirror = Mirror(client, Service, on_change=self._changed, optional=True)
        self._on_first = on_first
        self._heard = False

    def known(self, pod: Pod) -> Collection[Service]:
        """Those there are. Raises Unread before the master has been heard, NotReady if it refuses to say.

        A static pod does not wait for the master: it may be what the master runs in.
        """
        if not self.mirror.synced and not is_static(pod):
            if self.mirror.trouble:
                raise NotReady(f"services: {self.mirror.trouble}")
            raise Unread("services are being read from the master")
        return self.mirror.items.values()

    def _changed(self) -> None:
        if not self._heard:
            self._heard = True
            self._on_first()
