"""Pods without a network: each has its loopback and nothing else."""

from __future__ import annotations

from api.attach import Attachment, AttachRequest, NetworkStatus


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
