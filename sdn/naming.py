"""The node's own name server, at the gateway of its pods: what the API says of services, to whom may know it."""

from __future__ import annotations

from pathlib import Path

import dns.name

from nameserver.directory import Directory
from nameserver.forwarder import Forwarder
from nameserver.names import STRANGER, Domain, Names
from nameserver.server import NameServer
from nameserver.upstreams import DNS_PORT, Upstreams
from reconcile.errors import NotReady
from reconcile.loop import Loop, Pace
from sdn.askers import Askers, askers
from sdn.network import Network
from sdn.settings import Settings
from sdn.view import Ground, View


class Naming:
    """Once there is a gateway it listens there, whether or not the master is near. Does nothing without a domain."""

    def __init__(self, directory: Directory, network: Network, settings: Settings) -> None:
        self._directory = directory
        self._network = network
        self._origin = dns.name.from_text(settings.cluster_domain)
        self._upstreams = Upstreams(Path(settings.resolv_conf))
        self._forwarder = Forwarder(self._upstreams)
        self._server = NameServer(Names(directory, Domain(self._origin), {}), self._lane, self._forwarder)
        self._listening = ""
        self._trouble = "starting"
        self._shown: Ground | None = None
        self._view: View | None = None
        self._askers: Askers | None = None
        self._loop = Loop("names", self._one_pass, Pace(resync=settings.resync_seconds))
        self._is_wanted = bool(settings.cluster_domain)

    @property
    def unready(self) -> str:
        """Why names are not told; empty if they are, or shall not be."""
        if not self._is_wanted:
            return ""
        return self._trouble or ("" if self._directory.ready else "names wait for the master's first answer")

    def wake(self) -> None:
        """Ask for a pass."""
        self._loop.wake()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._loop.run()
        finally:
            await self._server.stop()
            await self._forwarder.close()

    async def _one_pass(self) -> None:
        """Raises NotReady when the address cannot be had."""
        ground = self._network.ground
        if ground is None or not self._is_wanted:
            return
        gateway = str(ground.node.gateway)
        if self._shown is not ground:
            self._show(ground, gateway)
        if self._listening != gateway:
            await self._listen(gateway)

    def _show(self, ground: Ground, gateway: str) -> None:
        networks = (*ground.cluster.networks, ground.cluster.service_network)
        self._upstreams.own = (gateway,)
        self._server.show(Names(self._directory, Domain(self._origin, networks, gateway), ground.lanes), self._lane)
        self._shown = ground

    async def _listen(self, gateway: str) -> None:
        await self._server.stop()
        self._listening = ""
        try:
            await self._server.start(gateway, DNS_PORT)
        except NotReady as error:
            self._trouble = str(error)
            raise
        self._listening, self._trouble = gateway, ""

    def _lane(self, address: str) -> int:
        """By the pods as the switch knows them now: a pod may ask as soon as its packets flow."""
        view = self._network.view
        if view is not self._view or self._askers is None:
            if view is None:
                return STRANGER
            self._view, self._askers = view, askers(view)
        return self._askers.lane(address)
