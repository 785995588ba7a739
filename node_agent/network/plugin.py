"""The interface PodNetwork of the plugins, and the network `none`. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from api.core.pod import Container, Pod
from api.network.attach import Attachment, AttachRequest, NetworkStatus
from reconcile.errors import Gone

NO_METRICS = "the network of this node has no daemon of Podlane, so there are no metrics of it"

POD_IP_FIELDS = ("status.podIP", "status.podIPs")


class PodNetwork(Protocol):
    """A network of pods: `sdn`, `cni` or `none`. Every call raises NotReady, Refused or Gone."""

    async def attach(self, request: AttachRequest) -> Attachment:
        """Attach a sandbox. Repeated calls for the same sandbox return the same attachment."""

    async def detach(self, sandbox: str) -> None:
        """Detach a sandbox completely. Does nothing if it is not attached."""

    async def status(self) -> NetworkStatus:
        """Return the status of the network. Raises NotReady with the reason while sandboxes cannot be attached."""

    async def list_sandboxes(self) -> frozenset[str]:
        """Return the IDs of all sandboxes that this agent has attached."""

    async def metrics(self) -> bytes:
        """Return the metrics of the network's daemon in the Prometheus text format. Raises Gone if it has none."""


class NoNetwork:
    """The network `none`. Sandboxes have no address, and no call fails."""

    async def attach(self, _: AttachRequest) -> Attachment:
        """Return an attachment without an address."""
        return Attachment(ip="", gateway="", mac="", mtu=0, host_interface="")

    async def detach(self, sandbox: str) -> None:
        """Do nothing."""

    async def status(self) -> NetworkStatus:
        """Return that the network is ready."""
        return NetworkStatus(ready=True)

    async def list_sandboxes(self) -> frozenset[str]:
        """Return no sandboxes."""
        return frozenset()

    async def metrics(self) -> bytes:
        """Raise Gone."""
        raise Gone(NO_METRICS)


def missing_address(pod: Pod, address: str) -> tuple[str, str] | None:
    """Return the reason and message of a failure if a pod needs an address and has none, otherwise None."""
    fields = ", ".join(_fields_needing_address(pod))
    if address or not fields:
        return None
    return "NoPodAddress", f"the network of this node gives pods no address, which is needed for {fields}"


def refers_to_pod_address(container: Container) -> bool:
    """Return whether an environment variable of a container has the pod's address."""
    return any(_variables_with_address(container))


def _fields_needing_address(pod: Pod) -> Iterator[str]:
    for container_index, container in enumerate(pod.spec.containers):
        if container.ports:
            yield f"spec.containers[{container_index}].ports"
        for variable in _variables_with_address(container):
            yield f"spec.containers[{container_index}].{variable}"


def _variables_with_address(container: Container) -> Iterator[str]:
    for index, variable in enumerate(container.env):
        source = variable.value_from
        if source is not None and source.field_ref is not None and source.field_ref.field_path in POD_IP_FIELDS:
            yield f"env[{index}]"
