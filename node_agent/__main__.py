"""Entry point: reads settings, opens the clients and the network, builds the agent, runs it until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from api.client.client import Client
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.meta import quantity
from node_agent import metrics
from node_agent.agent import Agent
from node_agent.certificates.client import ClientCertificate, load_kubeconfig
from node_agent.certificates.serving import ServingCertificate
from node_agent.docker.client import DockerClient, LogLimits
from node_agent.docker.exec import ExecJournal, kill_orphaned_execs
from node_agent.images.pull_backoff import PullLimits
from node_agent.network.cni import CniNetwork
from node_agent.network.plugin import NoNetwork
from node_agent.network.plugin import PodNetwork as SandboxNetwork
from node_agent.network.sdn import SdnNetwork
from node_agent.probes.prober import Prober
from node_agent.server.auth import RequestAuth
from node_agent.server.endpoints import StatusHandlers
from node_agent.server.exec import ExecHandlers
from node_agent.server.logs import LogHandler
from node_agent.server.portforward import PortForwardHandler
from node_agent.server.server import Server, require_client_certificates
from node_agent.settings import Settings
from node_agent.volumes import mounts
from reconcile.config_file import load
from reconcile.daemon import notify, run
from reconcile.errors import NotReady, Refused
from reconcile.health import Health

log = logging.getLogger(__name__)


@asynccontextmanager
async def _network(settings: Settings) -> AsyncIterator[SandboxNetwork]:
    if settings.network == "none":
        yield NoNetwork()
    elif settings.network == "cni":
        yield CniNetwork(Path(settings.cni_conf_dir), settings.cni_bin_dirs, Path(settings.state_dir) / "cni")
    else:
        async with SdnNetwork(settings.sdn_socket) as network:
            yield network


async def serve(settings: Settings) -> None:
    """Run until cancelled; the pods stay as they are afterwards."""
    await asyncio.to_thread(_share, Path(settings.state_dir) / "pods")
    limits = LogLimits(quantity.to_int(settings.container_log_max_size), settings.container_log_max_files)
    pulls = PullLimits(
        settings.max_parallel_image_pulls,
        settings.registry_pull_qps,
        settings.registry_burst,
        settings.image_pull_progress_deadline_seconds,
    )
    started = ExecJournal(Path(settings.state_dir) / "programs")
    docker = DockerClient(settings.docker_socket, limits, settings.runtime_request_timeout_seconds, pulls)
    if settings.bootstrap_kubeconfig:
        notify("READY=1")  # Somebody may have to approve: a service manager is not to wait for that.
    async with (
        Client(await load_kubeconfig(settings), metrics.count_request) as client,
        _network(settings) as network,
        Prober(docker) as prober,
    ):
        identity, certificate = ClientCertificate(settings, client), ServingCertificate(settings, client)
        if settings.tls_cert_file:
            await _given(certificate)
        require_client_certificates(await asyncio.to_thread(_callers_authority, settings), certificate.context())
        async with asyncio.TaskGroup() as tasks:
            agent = Agent(settings, client, docker, network, prober, tasks.create_task)
            server = _server(settings, agent, client, certificate, started)
            health = Health(settings.health_address, lambda: agent.heart.unready, agent.stuck)
            await health.start()
            notify("READY=1")
            try:
                for loop in (agent.ports, identity.loop, certificate.loop):
                    tasks.create_task(loop.run())
                tasks.create_task(kill_orphaned_execs(settings.docker_socket, started))
                tasks.create_task(_open(server, certificate))
                for work in agent.work():
                    tasks.create_task(work)
                await asyncio.Event().wait()
            finally:
                docker.close()
                await server.stop()
                await health.stop()


async def _given(certificate: ServingCertificate) -> None:
    """Whoever has given files that are no certificate hears of it at once. Raises Refused."""
    try:
        await certificate.load()
    except NotReady as error:
        log.warning("nobody can call before there is a certificate", extra={"error": error})


async def _open(server: Server, certificate: ServingCertificate) -> None:
    """Pods come first: nobody waits until a certificate has been made or read."""
    await certificate.loaded()
    await server.loop.run()


def _callers_authority(settings: Settings) -> bytes:
    """Who signs the certificates of those who may call. Raises BadKubeconfig, and Refused for a file that is none."""
    if not settings.client_ca_file:
        return Kubeconfig.load(settings.kubeconfig).ca
    try:
        return Path(settings.client_ca_file).read_bytes()
    except OSError as error:
        raise Refused(f"clientCaFile {settings.client_ca_file}: {error.strerror}") from None


def _server(
    settings: Settings, agent: Agent, client: Client, certificate: ServingCertificate, started: ExecJournal
) -> Server:
    """What others see of the agent."""
    pods, docker = agent.known, settings.docker_socket
    parts = (
        StatusHandlers(settings, pods, agent.reports, agent.stuck),
        LogHandler(pods, docker),
        ExecHandlers(pods, docker, started),
        PortForwardHandler(pods),
    )
    return Server(
        settings.address,
        settings.port,
        certificate.context(),
        RequestAuth(client, settings.node_name),
        tuple(route for part in parts for route in part.routes()),
    )


def _share(pods: Path) -> None:
    """Without it pods run as well, but those whose mounts others are to see; Docker refuses these, and says why."""
    pods.mkdir(exist_ok=True)
    try:
        mounts.make_shared(pods)
    except NotReady as error:
        log.warning("mounts of containers do not reach the host", extra={"error": error})


def main() -> int:
    """Entry point of the command."""
    settings = load(Settings, "podlane-node-agent", "/etc/podlane/node-agent.yaml")
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True)
    try:
        code = run(lambda: serve(settings), settings.log_level)
    except (BadKubeconfig, Refused) as error:
        sys.stderr.write(f"podlane-node-agent: {error}\n")
        return 1
    # Python would wait for threads that wait for a Docker that hangs; there is nothing of theirs to be kept.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
