"""Builds the parts of the daemon in order of dependency and runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from api.client.client import Client
from reconcile.atomic_file import AtomicFile
from reconcile.daemon import notify
from reconcile.health import Health
from reconcile.health_checks import HealthCheck
from reconcile.loop import Loop, LoopTiming
from sdn.cluster_dns.server import ClusterDns
from sdn.cniserver.attacher import PodAttacher
from sdn.cniserver.server import CONFLIST, CniServer, conflist
from sdn.config import Settings, node_identity
from sdn.controller import NetworkController
from sdn.drivers import Drivers
from sdn.drivers.diagnostics import OvsAppctl
from sdn.drivers.netlink import Netlink
from sdn.drivers.nftables import Nftables, NftablesMonitor
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.ovsdb import Ovsdb
from sdn.host.firewall import FORWARD, GUARD_TABLE, TABLE
from sdn.host.reconciler import HostReconciler
from sdn.kubeconfig import load_kubeconfig
from sdn.metrics import Drift
from sdn.model.host import BRIDGE
from sdn.network_state import NetworkState
from sdn.pipeline.flows import BRIDGE_LAYOUT
from sdn.proxy.events import ServiceEvents
from sdn.proxy.proxier import Proxier, proxy_stages
from sdn.proxy.service_watcher import ServiceWatcher
from sdn.query.drop_events import DropEvents
from sdn.query.handler import NodeQueryHandler
from sdn.query.peer_monitor import PeerMonitor
from sdn.topology_watcher import TopologyWatcher


async def serve(settings: Settings) -> None:
    """Run the daemon until cancelled. The datapath stays as it is afterwards."""
    identity, ovs_rundir = node_identity(settings), Path(settings.ovs_rundir)
    state, drift = NetworkState(), Drift()
    network_trigger, proxy_trigger, dns_trigger = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_external_change() -> None:
        host.invalidate()
        network_trigger.set()

    async with Client(await load_kubeconfig(settings.kubeconfig)) as client, Netlink() as netlink:
        drivers = Drivers(
            ovsdb=Ovsdb(ovs_rundir / "db.sock", network_trigger.set),
            openflow=OpenFlowClient(ovs_rundir / f"{BRIDGE}.mgmt", BRIDGE_LAYOUT, on_external_change),
            netlink=netlink,
            nftables=Nftables(),
        )
        topology = TopologyWatcher(client, network_trigger.set)
        host = HostReconciler(identity=identity, drivers=drivers, settings=settings, drift=drift)
        attacher = PodAttacher(
            drivers=drivers,
            datapath_type=identity.datapath_type,
            state=state,
            drift=drift,
            wake=network_trigger.set,
        )
        controller = NetworkController(
            identity=identity,
            drivers=drivers,
            host=host,
            attacher=attacher,
            state=state,
            drift=drift,
            snapshot=topology.snapshot,
        )
        cni_config = AtomicFile(f"{settings.cni_conf_dir}/{CONFLIST}" if settings.cni_conf_dir else "")
        cni_config.remove()

        async def reconcile() -> None:
            config = state.published_config
            try:
                await controller.reconcile()
            finally:
                if state.not_ready_reason:
                    cni_config.remove()
                else:
                    cni_config.write(conflist(settings.socket))
                if state.published_config is not config:
                    proxy_trigger.set()
                    dns_trigger.set()

        network = Loop("network", reconcile, LoopTiming(resync=settings.resync_seconds), network_trigger)
        firewall = NftablesMonitor(drivers.nftables, (TABLE, GUARD_TABLE, FORWARD[1]), on_external_change)
        services = ServiceWatcher(client, on_change=proxy_trigger.set, on_first_sync=dns_trigger.set)
        proxier = Proxier(
            proxy_stages(settings, drivers, proxy_trigger.set),
            services=services,
            state=state,
            drift=drift,
            trigger=proxy_trigger,
            resync_seconds=settings.resync_seconds,
        )
        cluster_dns = ClusterDns(services.service_store, settings, state=state, trigger=dns_trigger)
        queries = NodeQueryHandler(
            client,
            settings.node_name,
            state=state,
            attacher=attacher,
            drift=drift,
            appctl=OvsAppctl(ovs_rundir),
            proxier=proxier,
        )
        server = CniServer(
            attacher,
            state,
            Path(settings.socket),
            dns_enabled=bool(settings.cluster_domain),
            health_port=int(settings.health_address.rpartition(":")[2]),
        )
        health = Health(
            settings.health_address,
            (
                HealthCheck("network", lambda: state.not_ready_reason),
                HealthCheck("services", lambda: proxier.not_ready_reason),
                HealthCheck("dns", lambda: cluster_dns.not_ready_reason),
            ),
        )
        await server.start()
        await health.start()
        notify("READY=1")
        parts = (
            topology,
            drivers.openflow,
            network,
            firewall,
            services,
            proxier,
            ServiceEvents(client, settings.node_name, services.service_map),
            cluster_dns,
            queries,
            PeerMonitor(client, state, settings.peer_probe_seconds),
            DropEvents(
                client,
                settings.node_name,
                state=state,
                attacher=attacher,
                appctl=OvsAppctl(ovs_rundir),
                trace=queries.trace,
                service_map=services.service_map,
            ),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(part.run())
        finally:
            cni_config.remove()
            await health.stop()
            await server.stop()
            await drivers.ovsdb.close()
            drivers.nftables.close()
