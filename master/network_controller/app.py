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
from reconcile.health_checks import HealthCheck

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
MANIFEST = "/opt/podlane/share/kubernetes/network.yaml"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def run_network_controller(config: MasterConfig) -> None:
    """Run until cancelled. Raises BadKubeconfig, Refused where the cluster lacks what is needed, and NotReady when
    another process becomes the leader.
    """
    network_settings = network_config(config)
    async with Client(Kubeconfig.load(config.kubeconfig)) as client:
        election = LeaderElection(client, f"{socket.gethostname()}-{os.getpid()}")
        network = NetworkController(client, network_settings, election.check, _now)

        def leader() -> str:
            return "" if election.is_leader else f"{election.holder or 'no process'} is the leader"

        def network_problem() -> str:
            return network.not_ready_reason if election.is_leader else ""

        checks = (HealthCheck("leaderElection", leader), HealthCheck("network", network_problem))
        health = Health(config.health_address, checks)
        await health.start()
        try:
            notify("READY=1")
            await _check_cluster(client, network_settings)
            await election.acquire()
            await _run_while_leading(network, election)
        finally:
            await election.release()
            await health.stop()


async def _run_while_leading(network: NetworkController, election: LeaderElection) -> None:
    """Run the controllers while this process is the leader. Raises NotReady when it is no more."""
    work, renewal = asyncio.create_task(network.run()), asyncio.create_task(election.renew())
    try:
        done, _ = await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()
        renewal.cancel()
        await asyncio.gather(work, renewal, return_exceptions=True)
    for task in done:
        task.result()


async def _check_cluster(client: Client, config: NetworkConfig) -> None:
    """Wait for the API server. Raises Refused if it lacks our kinds or permissions, or has another service network."""
    while True:
        try:
            await client.list(ClusterNetwork)
            service = await client.get(Service, kubernetes_service.NAME, kubernetes_service.NAMESPACE)
            break
        except (NotFound, Forbidden) as error:
            raise Refused(
                f"our kinds, or our permissions, do not exist ({error}); kubectl apply -f {MANIFEST}"
            ) from None
        except Unreachable as error:
            log.warning("waiting for the API server", extra={"error": str(error)})
            await asyncio.sleep(RETRY_SECONDS)
    if IPv4Address(service.spec.cluster_ip) not in config.service_network:
        raise Refused(
            f"serviceNetwork is {config.service_network}, but the service {kubernetes_service.NAME} of this cluster "
            f"has the address {service.spec.cluster_ip}; its --service-cluster-ip-range is accepted"
        )
