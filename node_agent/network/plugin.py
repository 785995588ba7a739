"""What every pod network offers (protocol), and the network `none`. Driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from api.core.pod import Pod
from api.network.attach import Attachment, AttachRequest, NetworkStatus

ADDRESS_FIELDS = ("status.podIP", "status.podIPs")


class PodNetwork(Protocol):
    """`sdn`, `cni` and `none` are its kinds. Every call raises NotReady, Refused or Gone."""

    async def attach(self, request: AttachRequest) -> Attachment:
        """The sandbox has its place when this returns; asking again gives the same answer."""

    async def detach(self, sandbox: str) -> None:
        """Nothing of the sandbox is left when this returns; one that is not there is no error."""

    async def status(self) -> NetworkStatus:
        """Raises NotReady, with the reason, while no sandbox can be attached."""

    async def sandboxes(self) -> frozenset[str]:
        """Every sandbox that has a place on behalf of this agent."""


def missing_address(pod: Pod, address: str) -> tuple[str, str] | None:
    """Reason and message for a pod that cannot be what it says without the address that its network does not give."""
    places = ", ".join(_needing_address(pod))
    if address or not places:
        return None
    return "NoPodAddress", f"the network of this node gives pods no address, which is needed for {places}"


def _needing_address(pod: Pod) -> Iterator[str]:
    for number, container in enumerate(pod.spec.containers):
        if container.ports:
            yield f"spec.containers[{number}].ports"
        for place, variable in enumerate(container.env):
            source = variable.value_from
            if source is not None and source.field_ref is not None and source.field_ref.field_path in ADDRESS_FIELDS:
                yield f"spec.containers[{number}].env[{place}]"


class NoNetwork:
    """There is nothing to attach to, so that nothing can fail."""

    async def attach(self, _: AttachRequest) -> Attachment:
        """No address."""
        return Attachment(ip="", gateway="", mac="", mtu=0, host_interface="")

    async def detach(self, sandbox: str) -> None:
        """Nothing to do."""

    async def status(self) -> NetworkStatus:
        """Always ready."""
        return NetworkStatus(ready=True)

    async def sandboxes(self) -> frozenset[str]:
        """None."""
        return frozenset()
