"""Pods that the API server has bound to this node."""

from __future__ import annotations

from api.client.client import Client
from api.client.informer import Informer
from api.core.pod import Pod
from api.validation.static_pods import CONFIG_MIRROR, from_api_server, is_mirror
from node_agent.sources.static_pods import SourcePods, namespaced_name
from reconcile.listeners import Listeners

LOCATION = "the API server"


class ApiServerSource:
    """The pods of this node on the API server, mirror pods included. `changed` notifies when one of them changes."""

    def __init__(self, client: Client, node_name: str) -> None:
        self.changed = Listeners()
        self.informer = Informer(
            client, Pod, field_selector=f"spec.nodeName={node_name}", on_change=self.changed.notify
        )

    @property
    def synced(self) -> bool:
        """Whether the API server has listed the pods at least once."""
        return self.informer.synced

    @property
    def source_pods(self) -> tuple[SourcePods, ...]:
        """The pods to run, oldest first. Mirror pods are omitted, because they represent pods of other sources."""
        pods = (from_api_server(pod) for pod in self.informer.items.values() if not is_mirror(pod))
        oldest_first = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", namespaced_name(pod)))
        return (SourcePods(LOCATION, tuple(oldest_first)),)

    def by_local_uid(self) -> dict[str, Pod]:
        """Return all objects by the UID that the pod has on this node: a mirror pod represents the static pod."""
        return {
            pod.metadata.annotations.get(CONFIG_MIRROR, pod.metadata.uid): pod for pod in self.informer.items.values()
        }

    async def run(self) -> None:
        """List and watch until cancelled."""
        await self.informer.run()
