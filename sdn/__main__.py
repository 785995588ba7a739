"""`podlane-sdn`: wiring only."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from pathlib import Path

from api.client.client import Client
from api.client.informer import Informer
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from reconcile.config_file import load
from reconcile.daemon import notify, run
from reconcile.health import Health
from reconcile.loop import Loop, LoopTiming
from sdn.attach import AttachServer
from sdn.base import Identity
from sdn.believed import believed
from sdn.drivers.netlink import Netlink
from sdn.drivers.nft_watch import NftWatch
from sdn.drivers.optional_file import OptionalFile
from sdn.drivers.unixctl import Control
from sdn.handouts import CONFLIST, conflist
from sdn.naming import Naming
from sdn.nat import GUARD_TABLE, TABLE
from sdn.network import Network
from sdn.queries import Queries
from sdn.services.wiring import Services
from sdn.settings import Settings
from sdn.view import Snapshot

log = logging.getLogger(__name__)


class Mirrors:
    """The three collections that the network follows."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._snapshot: Snapshot | None = None
        self._doubts: Mapping[str, str] = {}
        self.cluster_networks = Informer(client, ClusterNetwork, on_change=self._changed)
        self.host_subnets = Informer(client, HostSubnet, on_change=self._changed)
        self.net_namespaces = Informer(client, NetNamespace, on_change=self._changed)

    def _changed(self) -> None:
        self._snapshot = None
        self._on_change()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (self.cluster_networks, self.host_subnets, self.net_namespaces):
                tasks.create_task(mirror.run())

    def snapshot(self) -> Snapshot | None:
        """What they hold, the same value until it changes; None until all are in sync."""
        mirrors = (self.cluster_networks, self.host_subnets, self.net_namespaces)
        if self._snapshot is None and all(mirror.synced for mirror in mirrors):
            self._snapshot = believed(
                Snapshot(
                    self.cluster_networks.items.get(("", "default")),
                    tuple(self.host_subnets.items.values()),
                    tuple(self.net_namespaces.items.values()),
                )
            )
            self._say(self._snapshot.doubts)
        return self._snapshot

    def _say(self, doubts: Mapping[str, str]) -> None:
        """Log a doubt once, not at every change."""
        for about, reason in doubts.items():
            if self._doubts.get(about) != reason:
                log.warning("not believed", extra={"about": about, "why": reason})
        self._doubts = doubts


def datapath_type(wish: str) -> str:
    """With `auto`, the kernel's datapath where the kernel has it, else the one in user space."""
    if wish != "auto":
        return wish
    return "system" if Path("/sys/module/openvswitch").exists() else "netdev"


def _identity(settings: Settings) -> Identity:
    first, _, last = settings.node_port_range.partition("-")
    return Identity(
        settings.node_name,
        IPv4Address(settings.node_ip),
        datapath_type(settings.datapath_type),
        settings.docker_project,
        (int(first), int(last)),
    )


async def serve(settings: Settings) -> None:
    """Run until cancelled; the datapath stays as it is afterwards."""
    async with Client(Kubeconfig.load(settings.kubeconfig)) as client, Netlink() as netlink:
        mirrors = Mirrors(client, lambda: network.wake())
        network = Network(
            _identity(settings),
            Path(settings.ovs_rundir),
            netlink,
            mirrors.snapshot,
            settings.docker_options_file,
            settings.resync_seconds,
        )
        conf = OptionalFile(f"{settings.cni_conf_dir}/{CONFLIST}" if settings.cni_conf_dir else "")
        conf.show(None)

        async def one_pass() -> None:
            try:
                await network.one_pass()
            finally:
                conf.show(None if network.unready else conflist(settings.socket))
                services.wake()
                naming.wake()

        loop = Loop("network", one_pass, LoopTiming(resync=settings.resync_seconds))
        services = Services(client, network, settings)
        naming = Naming(services.followed, network, settings)
        network.wake = loop.wake
        firewall = NftWatch(network.nft, (TABLE, GUARD_TABLE), network.look_at_everything)
        queries = Queries(client, settings.node_name, network, Control(Path(settings.ovs_rundir)), services)
        server = AttachServer(network, Path(settings.socket), tells_names=bool(settings.cluster_domain))
        health = Health(settings.health_address, lambda: network.unready or services.unready or naming.unready)
        await server.start()
        await health.start()
        notify("READY=1")
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (mirrors, network.openflow, loop, queries, services, naming, firewall):
                    tasks.create_task(work.run())
        finally:
            conf.show(None)
            await health.stop()
            await server.stop()
            await network.close()


def main() -> int:
    """Entry point of the command."""
    settings = load(Settings, "podlane-sdn", "/etc/podlane/sdn.yaml")
    try:
        return run(lambda: serve(settings), settings.log_level)
    except BadKubeconfig as error:
        sys.stderr.write(f"podlane-sdn: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
