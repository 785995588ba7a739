"""podlane-master --kubeconfig: waits for the API server, elects a leader, runs the network controllers."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
from ipaddress import IPv4Address

from api.client.client import Client, Forbidden, NotFound, Unreachable
from api.client.kubeconfig import Kubeconfig
from api.core.services import Service
from api.network.types import ClusterNetwork
from master.config import MasterConfig, NetworkConfig, network_config
from master.controllers.network import kubernetes_service
from master.network_controller.client_writer import NetworkController
from master.network_controller.leader_election import LeaderElection
from reconcile.daemon import notify
from reconcile.errors import Refused
from reconcile.health import Health

log = logging.getLogger(__name__)

ABSENT_SECONDS = 1.0
MANIFEST = "/opt/podlane/share/kubernetes/network.yaml"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def run_network_controller(settings: MasterConfig) -> None:
    """Run until cancelled. Raises BadKubeconfig, Refused where nothing can be done, and NotReady when somebody else has
    come to be in charge.
    """
    wish = network_config(settings)
    async with Client(Kubeconfig.load(settings.kubeconfig)) as client:
        election = LeaderElection(client, f"{socket.gethostname()}-{os.getpid()}")
        network = NetworkController(client, wish, election.check, _now)

        def unready() -> str:
            return network.unready if election.held else f"{election.holder or 'nobody yet'} is in charge"

        health = Health(settings.health_address, unready)
        await health.start()
        try:
            notify("READY=1")
            await _suits(client, wish)
            await election.win()
            await _both(network, election)
        finally:
            await election.give_back()
            await health.stop()


async def _both(network: NetworkController, election: LeaderElection) -> None:
    """Work for as long as we are in charge. Raises NotReady when we are no more."""
    working, keeping = asyncio.create_task(network.run()), asyncio.create_task(election.keep())
    try:
        done, _ = await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        keeping.cancel()
        await asyncio.gather(working, keeping, return_exceptions=True)
    for task in done:
        task.result()


async def _suits(client: Client, wish: NetworkConfig) -> None:
    """Wait for the API server. Raises Refused when it lacks our kinds or our rights, or its services lie elsewhere."""
    while True:
        try:
            await client.list(ClusterNetwork)
            service = await client.get(Service, kubernetes_service.NAME, kubernetes_service.NAMESPACE)
            break
        except (NotFound, Forbidden) as error:
            raise Refused(f"our kinds, or our rights, are not there ({error}); kubectl apply -f {MANIFEST}") from None
        except Unreachable as error:
            log.warning("waiting for the API server", extra={"error": str(error)})
            await asyncio.sleep(ABSENT_SECONDS)
    if IPv4Address(service.spec.cluster_ip) not in wish.service_network:
        raise Refused(
            f"serviceNetwork is {wish.service_network}, but the service {kubernetes_service.NAME} of this cluster has "
            f"the address {service.spec.cluster_ip}; what --service-cluster-ip-range of its API server says is accepted"
        )
