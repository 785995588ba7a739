"""Builds the parts of the agent in order of dependency, and runs them."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.meta import quantity
from node_agent import metrics
from node_agent.certificates.authorities import Authorities
from node_agent.certificates.client import ClientCertificate, load_kubeconfig
from node_agent.certificates.serving import ServingCertificate
from node_agent.cgroups import hierarchy
from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import PodsCapacity
from node_agent.cgroups.manager import CgroupManager
from node_agent.cgroups.systemd import SystemdDriver
from node_agent.clock import steady_clock
from node_agent.config import Settings
from node_agent.docker.client import DockerClient, LogLimits
from node_agent.docker.exec import ExecJournal, kill_orphaned_execs
from node_agent.event_recorder import EventRecorder
from node_agent.eviction.manager import EvictionManager
from node_agent.eviction.thresholds import NodePressure, parse_thresholds
from node_agent.host import HostInfo
from node_agent.images.gc import ImageGC
from node_agent.images.pull_backoff import PullLimits
from node_agent.network.cni import CniNetwork
from node_agent.network.host_ports import HostPortManager, PortRange
from node_agent.network.plugin import NoNetwork, PodNetwork
from node_agent.network.sdn import SdnNetwork
from node_agent.node import host_facts
from node_agent.node.lease import LeaseController
from node_agent.node.node_status import NodeIdentity, parse_reserved, parse_taint
from node_agent.node.registered_node import RegisteredNode
from node_agent.node.status_loop import NodeStatusLoop
from node_agent.object_cache import ObjectCache, ServiceLister
from node_agent.pods.admitter import PodAdmitter
from node_agent.pods.local_pods import LocalPods
from node_agent.pods.manager import PodManager
from node_agent.pods.mirror_pods import MirrorPodController
from node_agent.pods.pod_workers import PodWorkers
from node_agent.pods.resize import resize_rejection
from node_agent.pods.status_manager import StatusManager
from node_agent.pods.worker import PodWorkerFactory
from node_agent.probes.manager import ProbeDependencies
from node_agent.probes.prober import Prober
from node_agent.runtime.container_gc import ContainerGC, SandboxGC
from node_agent.runtime.log_links import LogLinker
from node_agent.runtime.pleg import Pleg, PodCache
from node_agent.server.auth import RequestAuth
from node_agent.server.endpoints import StatusHandlers
from node_agent.server.exec import ExecHandlers
from node_agent.server.images import ImageHandler
from node_agent.server.logs import LogHandler
from node_agent.server.portforward import PortForwardHandler
from node_agent.server.server import Server, require_client_certificates
from node_agent.sources.api_server import ApiServerSource
from node_agent.sources.pod_config import PodConfig
from node_agent.stats.collector import CgroupReader, StatsCollector
from node_agent.stats.disk import DiskUsageScanner
from node_agent.stats.metrics import ProbeMetrics
from node_agent.stats.provider import StatsProvider
from node_agent.volumes import mounts
from node_agent.volumes.local_directories import LocalDirectories
from node_agent.volumes.local_volumes import LocalVolumeController
from node_agent.volumes.manager import mounted_claims
from node_agent.volumes.tokens import TokenCache
from reconcile.daemon import notify
from reconcile.errors import NotReady, Refused
from reconcile.health import Health
from reconcile.health_checks import HealthCheck

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task that lives as long as the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The connections of the agent to other programs."""

    api: Client
    docker: DockerClient
    network: PodNetwork
    prober: Prober


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The parts of the agent. Each of them needs only parts that were built before it."""

    events: EventRecorder
    api_server: ApiServerSource
    config: PodConfig
    objects: ObjectCache
    services: ServiceLister
    pleg: Pleg
    cgroups: CgroupManager
    statuses: StatusManager
    node: RegisteredNode
    node_status: NodeStatusLoop
    lease: LeaseController
    pods: PodManager
    mirror_pods: MirrorPodController
    host_ports: HostPortManager
    image_gc: ImageGC
    container_gc: ContainerGC
    sandbox_gc: SandboxGC
    log_linker: LogLinker
    eviction: EvictionManager
    stats: StatsProvider
    local_volumes: LocalVolumeController

    def loops(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield everything that runs as long as the agent, except `host_ports`, which writes to the host's network."""
        yield self.node_status.loop.run()
        yield self.lease.loop.run()
        yield self.node.informer.run()
        yield self.config.run()
        yield self.pods.loop.run()
        yield self.mirror_pods.loop.run()
        yield self.statuses.loop.run()
        yield self.events.loop.run()
        yield self.pleg.loop.run()
        yield self.pleg.watch_events()
        yield self.services.informer.run()
        yield self.cgroups.loop.run()
        yield self.container_gc.loop.run()
        yield self.sandbox_gc.loop.run()
        yield self.image_gc.loop.run()
        yield self.log_linker.loop.run()
        yield self.local_volumes.run()
        yield from (loop.run() for loop in self.eviction.loops)


def build_agent(settings: Settings, clients: Clients, spawn: Spawn) -> Agent:
    """Build every part of the agent once, and connect those that wake each other."""
    host = _host_info(settings)
    identity = _node_identity(settings)
    docker = clients.docker
    events = EventRecorder(clients.api, settings.node_name)
    pod_workers = PodWorkers()
    pressure = NodePressure()
    cache = PodCache(docker)
    pleg = Pleg(docker, cache, wake=pod_workers.wake)
    objects = ObjectCache(clients.api, spawn, on_change=pod_workers.wake)
    services = ServiceLister(clients.api, on_first_sync=pod_workers.wake_all)
    probes = ProbeDependencies(clients.prober, random.random, steady_clock(), ProbeMetrics())
    cgroups = _cgroup_manager(settings, host, docker, pod_workers)
    api_server = ApiServerSource(clients.api, settings.node_name)
    config = PodConfig(settings, api_server, events)
    statuses = StatusManager(clients.api, api_server.by_local_uid)
    node = RegisteredNode(clients.api, identity, Path(settings.state_dir), events)
    lease = LeaseController(clients.api, identity, node, settings.heartbeat_seconds)
    node_status = NodeStatusLoop(settings, docker, clients.network, node, pressure)
    worker_factory = PodWorkerFactory(
        docker=docker,
        network=clients.network,
        cgroups=cgroups,
        host=host,
        cache=cache,
        objects=objects,
        services=services.list,
        tokens=TokenCache(clients.api),
        probes=probes,
        statuses=statuses,
        events=events,
        node=lambda: node.current,
        resize_rejection=lambda pod: resize_rejection(pod, node.current, pod_workers.other_pods(pod)),
    )
    pods = PodManager(
        config=config,
        api_server=api_server,
        admitter=PodAdmitter(node, pressure, host, settings.allowed_unsafe_sysctls, events),
        workers=pod_workers,
        worker_factory=worker_factory,
        statuses=statuses,
        local_pods=LocalPods(docker, cgroups, host),
        cache=cache,
        spawn=spawn,
    )
    mirror_pods = MirrorPodController(clients.api, api_server, node, pods)
    host_ports = HostPortManager(
        pod_workers.active_pods,
        sources_ready=config.seen_all_sources,
        network=clients.network,
        own_ports=_own_ports(settings),
        events=events,
    )
    image_gc = ImageGC(settings, docker, events)
    container_gc = ContainerGC(settings, docker, clients.network, pods=pod_workers)
    sandbox_gc = SandboxGC(docker, clients.network)
    log_linker = LogLinker(settings, docker)
    disks = DiskUsageScanner(docker, host)
    eviction = EvictionManager(
        settings=settings,
        docker=docker,
        disks=disks,
        evictable=pods.evictable_workers,
        reclaim=(container_gc.collect, image_gc.remove_unused_images),
        pressure=pressure,
        events=events,
    )
    stats = StatsProvider(
        node=settings.node_name,
        state_dir=settings.state_dir,
        docker=docker,
        collector=StatsCollector(hierarchy.pods_cgroup(settings.cgroup_root), CgroupReader()),
        disks=disks,
        probes=probes.metrics,
        pods=pods.list_pods,
        claims=functools.partial(mounted_claims, objects, host, lambda: node.current),
        spawn=spawn,
    )
    local_volumes = LocalVolumeController(clients.api, settings.node_name, _local_directories(settings, host))
    # Which change wakes which part.
    api_server.changed.add(pods.loop.wake, mirror_pods.loop.wake, statuses.loop.wake)
    config.changed.add(pods.loop.wake)
    pleg.containers_changed.add(log_linker.loop.wake)
    pleg.connected.add(pod_workers.wake_all, cgroups.invalidate_driver, node_status.loop.wake, sandbox_gc.loop.wake)
    node.registered.add(lease.loop.wake, mirror_pods.loop.wake)
    node.changed.add(node_status.loop.wake, mirror_pods.loop.wake)
    node_status.subnet_changed.add(pod_workers.network_changed)
    statuses.changed.add(host_ports.loop.wake)
    statuses.pod_finished.add(pods.loop.wake)  # Another pod may have room now.
    pods.synced.add(mirror_pods.loop.wake)
    pods.pod_terminated.add(host_ports.loop.wake)
    for loop in (log_linker.loop, container_gc.loop, image_gc.loop, *eviction.loops):
        pods.sources_ready.add(loop.wake)
    eviction.changed.add(node_status.loop.wake)
    return Agent(
        events=events,
        api_server=api_server,
        config=config,
        objects=objects,
        services=services,
        pleg=pleg,
        cgroups=cgroups,
        statuses=statuses,
        node=node,
        node_status=node_status,
        lease=lease,
        pods=pods,
        mirror_pods=mirror_pods,
        host_ports=host_ports,
        image_gc=image_gc,
        container_gc=container_gc,
        sandbox_gc=sandbox_gc,
        log_linker=log_linker,
        eviction=eviction,
        stats=stats,
        local_volumes=local_volumes,
    )


def _local_directories(settings: Settings, host: HostInfo) -> LocalDirectories | None:
    if settings.local_volume_dir == "none":
        return None
    chosen = settings.local_volume_dir
    root = Path(chosen) if chosen else Path(settings.state_dir) / "local-volumes"
    return LocalDirectories(root, Path(host.pods_dir), creates_root=not chosen)


def _host_info(settings: Settings) -> HostInfo:
    return dataclasses.replace(
        host_facts.read_host_info(Path(settings.state_dir)),
        node_address=settings.node_ip,
        pause_image=settings.pause_image,
        cluster_domain=settings.cluster_domain,
        cluster_dns=settings.cluster_dns,
        resolv_conf=settings.resolv_conf,
        pod_logs_dir=settings.pod_logs_dir,
        seccomp_default=settings.seccomp_default,
        cpu_cfs_quota=settings.cpu_cfs_quota,
    )


def _own_ports(settings: Settings) -> frozenset[PortRange]:
    """Return the ports on which this agent listens."""
    health_port = int(settings.health_address.rpartition(":")[2])
    return frozenset(PortRange("tcp", port, port) for port in (settings.port, health_port))


def _node_identity(settings: Settings) -> NodeIdentity:
    return NodeIdentity(
        name=settings.node_name,
        address=settings.node_ip,
        max_pods=settings.max_pods,
        port=settings.port,
        taints=tuple(map(parse_taint, settings.register_with_taints)),
        reserved=parse_reserved(settings.kube_reserved, settings.system_reserved),
        eviction_hard=parse_thresholds(settings.eviction_hard),
        has_local_volumes=settings.local_volume_dir != "none",
    )


def _cgroup_manager(settings: Settings, host: HostInfo, docker: DockerClient, pod_workers: PodWorkers) -> CgroupManager:
    reserved = parse_reserved(settings.kube_reserved, settings.system_reserved)
    capacity = PodsCapacity(host.cpus, host.memory - reserved.memory, settings.pod_pids_limit, settings.cpu_cfs_quota)
    cgroupfs = CgroupfsDriver()
    return CgroupManager(
        docker, cgroupfs, SystemdDriver(cgroupfs), settings.cgroup_root, capacity, pod_workers.active_pods
    )


# --- the process ---------------------------------------------------------------------------------------------------


async def serve(settings: Settings) -> None:
    """Run the agent until cancelled. Pods run on afterwards."""
    await asyncio.to_thread(_share_mounts, Path(settings.state_dir) / "pods")
    exec_journal = ExecJournal(Path(settings.state_dir) / "programs")
    docker = _docker_client(settings)
    if settings.bootstrap_kubeconfig:
        # An administrator may have to approve the certificate. The service manager must not wait for that.
        notify("READY=1")
    async with (
        Client(await load_kubeconfig(settings), metrics.count_request) as api,
        _pod_network(settings) as network,
        Prober(docker) as prober,
    ):
        authorities = Authorities(settings, api, lambda ca: _trust(ca, serving_certificate))
        serving_certificate = ServingCertificate(settings, api, is_superseded=authorities.is_superseded)
        client_certificate = ClientCertificate(settings, api, authorities=authorities, serving=serving_certificate)
        if settings.tls_cert_file:
            await _load_certificate_files(serving_certificate)
        client_ca = await asyncio.to_thread(_read_client_ca, settings)
        require_client_certificates(client_ca, serving_certificate.context())
        async with asyncio.TaskGroup() as tasks:
            clients = Clients(api=api, docker=docker, network=network, prober=prober)
            agent = build_agent(settings, clients, tasks.create_task)
            server = _build_server(settings, agent, clients, serving_certificate, exec_journal)
            health = Health(
                settings.health_address,
                (HealthCheck("node", lambda: agent.node_status.not_ready_reason),),
                (HealthCheck("syncloop", agent.pods.hung_reason),),
            )
            await health.start()
            notify("READY=1")
            try:
                for loop in (agent.host_ports.loop, client_certificate.loop, serving_certificate.loop):
                    tasks.create_task(loop.run())
                tasks.create_task(kill_orphaned_execs(settings.docker_socket, exec_journal))
                tasks.create_task(_run_server(server, serving_certificate))
                for loop_run in agent.loops():
                    tasks.create_task(loop_run)
                await asyncio.Event().wait()
            finally:
                docker.close()
                await server.stop()
                await health.stop()


def _trust(ca: bytes, serving_certificate: ServingCertificate) -> None:
    """Accept client certificates of further authorities. Those that are not trusted any more stay until a restart."""
    require_client_certificates(ca, serving_certificate.context())


def _docker_client(settings: Settings) -> DockerClient:
    log_limits = LogLimits(quantity.to_int(settings.container_log_max_size), settings.container_log_max_files)
    pull_limits = PullLimits(
        settings.max_parallel_image_pulls,
        settings.registry_pull_qps,
        settings.registry_burst,
        settings.image_pull_progress_deadline_seconds,
        settings.local_registries,
    )
    return DockerClient(settings.docker_socket, log_limits, settings.runtime_request_timeout_seconds, pull_limits)


@asynccontextmanager
async def _pod_network(settings: Settings) -> AsyncIterator[PodNetwork]:
    if settings.network == "none":
        yield NoNetwork()
    elif settings.network == "cni":
        yield CniNetwork(Path(settings.cni_conf_dir), settings.cni_bin_dirs, Path(settings.state_dir) / "cni")
    else:
        async with SdnNetwork(settings.sdn_socket) as network:
            yield network


def _share_mounts(pods_dir: Path) -> None:
    """Make the pods' directory a shared mount, so that mounts of containers can reach the host.

    If that fails, Docker refuses only containers with mount propagation, with a message.
    """
    pods_dir.mkdir(exist_ok=True)
    try:
        mounts.make_shared(pods_dir)
    except NotReady as error:
        log.warning("mount propagation from containers to the host is not available", extra={"error": error})


async def _load_certificate_files(certificate: ServingCertificate) -> None:
    """Load the certificate files of the settings. Raises Refused if they do not contain a certificate."""
    try:
        await certificate.load()
    except NotReady as error:
        log.warning("server certificate is missing; requests are refused until it exists", extra={"error": error})


def _read_client_ca(settings: Settings) -> bytes:
    """Return the CA of client certificates. Raises BadKubeconfig, and Refused if the file cannot be read."""
    if not settings.client_ca_file:
        return Kubeconfig.load(settings.kubeconfig).ca
    try:
        return Path(settings.client_ca_file).read_bytes()
    except OSError as error:
        raise Refused(f"clientCaFile {settings.client_ca_file}: {error.strerror}") from None


def _build_server(
    settings: Settings, agent: Agent, clients: Clients, certificate: ServingCertificate, exec_journal: ExecJournal
) -> Server:
    handlers = (
        StatusHandlers(settings, agent.pods, agent.stats, clients.network, agent.pods.hung_reason),
        LogHandler(agent.pods, settings.docker_socket),
        ExecHandlers(agent.pods, settings.docker_socket, exec_journal),
        PortForwardHandler(agent.pods),
        ImageHandler(clients.docker),
    )
    return Server(
        settings.address,
        settings.port,
        certificate.context(),
        RequestAuth(clients.api, settings.node_name),
        tuple(route for handler in handlers for route in handler.routes()),
    )


async def _run_server(server: Server, certificate: ServingCertificate) -> None:
    """Run the HTTPS server as soon as there is a certificate. Pods do not wait for it."""
    await certificate.loaded()
    await server.loop.run()
