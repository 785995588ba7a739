"""Builds the parts of the daemon in order of dependency and runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from reconcile.atomic_file import AtomicFile
from reconcile.daemon import notify
from reconcile.health import Health
from reconcile.loop import Loop, LoopTiming
from sdn.cluster_dns.server import ClusterDns
from sdn.cniserver.server import CONFLIST, CniServer, conflist
from sdn.config import Settings, node_identity
from sdn.controller import NetworkController, TopologyWatcher
from sdn.drivers.diagnostics import OvsAppctl
from sdn.drivers.netlink import Netlink
from sdn.drivers.nftables import NftablesMonitor
from sdn.host.firewall import GUARD_TABLE, TABLE
from sdn.proxy.proxier import Proxier
from sdn.query.handler import NodeQueryHandler


async def serve(settings: Settings) -> None:
    """Run until cancelled; the datapath stays as it is afterwards."""
    async with Client(Kubeconfig.load(settings.kubeconfig)) as client, Netlink() as netlink:
        mirrors = TopologyWatcher(client, lambda: network.wake())
        network = NetworkController(
            node_identity(settings),
            Path(settings.ovs_rundir),
            netlink,
            mirrors.snapshot,
            settings.docker_options_file,
            settings.resync_seconds,
        )
        conf = AtomicFile(f"{settings.cni_conf_dir}/{CONFLIST}" if settings.cni_conf_dir else "")
        conf.show(None)

        async def one_pass() -> None:
            try:
                await network.one_pass()
            finally:
                conf.show(None if network.unready else conflist(settings.socket))
                services.wake()
                naming.wake()

        loop = Loop("network", one_pass, LoopTiming(resync=settings.resync_seconds))
        services = Proxier(client, network, settings)
        naming = ClusterDns(services.followed, network, settings)
        network.wake = loop.wake
        firewall = NftablesMonitor(network.nft, (TABLE, GUARD_TABLE), network.look_at_everything)
        queries = NodeQueryHandler(client, settings.node_name, network, OvsAppctl(Path(settings.ovs_rundir)), services)
        server = CniServer(network, Path(settings.socket), dns_enabled=bool(settings.cluster_domain))
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
