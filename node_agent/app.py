"""Builds the parts of the agent in order of dependency, and runs them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from api.client.client import Client
from api.client.informer import Informer
from api.client.kubeconfig import Kubeconfig
from api.core.pod import FINAL_PHASES, Pod, PodSpec, PodStatus
from api.core.references import pod_refs
from api.meta import quantity
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_MIRROR, from_master, is_mirror, is_static
from node_agent import metrics
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
from node_agent.eviction.thresholds import Pressure
from node_agent.host import HostInfo, pod_dir
from node_agent.images.gc import ImageGC
from node_agent.images.pull_backoff import PullLimits
from node_agent.network.cni import CniNetwork
from node_agent.network.host_ports import HostPortManager
from node_agent.network.plugin import NoNetwork, PodNetwork
from node_agent.network.plugin import PodNetwork as SandboxNetwork
from node_agent.network.sdn import SdnNetwork
from node_agent.node import host_facts, node_status
from node_agent.node.lease import LeaseController
from node_agent.node.node_status import NodeIdentity, parse_taint
from node_agent.node.registered_node import RegisteredNode
from node_agent.node.status_loop import NodeStatusLoop
from node_agent.object_cache import ObjectCache, ServiceLister
from node_agent.pods.admission import Rejection
from node_agent.pods.admitter import AdmitResult, PodAdmitter
from node_agent.pods.conditions import foreign_conditions
from node_agent.pods.manager import PodLister
from node_agent.pods.mirror_pods import MirrorPodController, MirrorStatusRestore, StaticPods
from node_agent.pods.status import rejected_status
from node_agent.pods.status_manager import StatusManager
from node_agent.pods.worker import PodWorker
from node_agent.probes.manager import ProbeDependencies
from node_agent.probes.prober import Prober
from node_agent.runtime import container
from node_agent.runtime import pod_dir as runtime_pod_dir
from node_agent.runtime.container_gc import ContainerGC, SandboxGC
from node_agent.runtime.log_links import LogLinker
from node_agent.runtime.pleg import Pleg, PodCache
from node_agent.runtime.sandbox import WorkerDependencies
from node_agent.server.auth import RequestAuth
from node_agent.server.endpoints import StatusHandlers
from node_agent.server.exec import ExecHandlers
from node_agent.server.logs import LogHandler
from node_agent.server.portforward import PortForwardHandler
from node_agent.server.server import Server, require_client_certificates
from node_agent.sources.pod_config import PodConfig
from node_agent.sources.static_pods import DuplicatePod, SourcePods, merge_sources, namespaced_name
from node_agent.stats.collector import CgroupReader, StatsCollector
from node_agent.stats.disk import DiskUsageScanner
from node_agent.stats.metrics import ProbeMetrics
from node_agent.stats.provider import StatsProvider
from node_agent.volumes import mounts
from node_agent.volumes.paths import claim_paths, claimed_volumes
from node_agent.volumes.tokens import TokenCache
from reconcile.daemon import notify
from reconcile.errors import NotReady, Refused
from reconcile.health import Health
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 60.0


class Agent:
    """`spawn` starts a task that lives as long as the daemon."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        docker: DockerClient,
        network: PodNetwork,
        prober: Prober,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._settings = settings
        self._client = client
        self._docker = docker
        self._network = network
        self._spawn = spawn
        self._workers: dict[str, PodWorker] = {}
        self._complete = False
        self._recollection = MirrorStatusRestore()
        self.recorder = EventRecorder(client, settings.node_name)
        self._doubles: frozenset[str] = frozenset()
        self._waiting: set[str] = set()
        self._services = ServiceLister(client, self._wake_workers)
        sysctls = settings.allowed_unsafe_sysctls
        identity = _node_identity(settings)
        self.node = RegisteredNode(client, identity, Path(settings.state_dir), self.recorder)
        self.lease = LeaseController(client, identity, self.node, settings.heartbeat_seconds)
        self.node_status = NodeStatusLoop(settings, docker, network, self.node, self._pressure)
        self.node_status.subnet_changed.add(self._reattach)
        self._door = PodAdmitter(self.node.cached, self.node.read, self._pressure, _host(settings), sysctls)
        self._cache = PodCache(docker)
        self._tools = self._make_tools(prober)
        selector = f"spec.nodeName={settings.node_name}"
        self.loop = Loop("pods", self._merge, LoopTiming(resync=HOUSEKEEPING_SECONDS))
        self.statuses = StatusManager(client, self._on_master)
        self.sandbox_gc = SandboxGC(docker, network)
        self.host_ports = HostPortManager(self._here, self._all_pods_known)
        self.pleg = Pleg(docker, self._cache, self._wake_worker)
        self.pleg.connected.add(self._wake_everyone)
        self.container_gc = ContainerGC(settings, docker, network, self._workers)
        self.image_gc = ImageGC(settings, docker, self.recorder)
        self.log_linker = LogLinker(settings, docker)
        self.pleg.containers_changed.add(self.log_linker.loop.wake)
        disks = DiskUsageScanner(docker, self._tools.host)
        self.evictor = EvictionManager(
            settings,
            docker,
            disks,
            self._evictable,
            self._reclaim,
            self.node_status.loop.wake,
            self.recorder.node_event,
        )
        self._sweep_due = 0.0
        self.static = PodConfig(settings, self.loop.wake, self.recorder.node_event)
        self.mirror = Informer(client, Pod, field_selector=selector, on_change=self._master_changed)
        self.mirroring = MirrorPodController(client, self.mirror, lambda: self.node.current, self._shown)
        self.node.registered.add(self.mirroring.loop.wake)
        self.node.changed.add(self.mirroring.loop.wake)
        self.known = PodLister(self._workers, self._cache, self._on_master)
        look, counts = (
            StatsCollector(hierarchy.pods_cgroup(settings.cgroup_root), CgroupReader()),
            self._tools.probing.counts,
        )
        node, pods, state = settings.node_name, self.known.everything, settings.state_dir
        self.reports = StatsProvider(node, state, docker, look, disks, counts, pods, self._claims, spawn)

    def _make_tools(self, prober: Prober) -> WorkerDependencies:
        settings, host = self._settings, _host(self._settings)
        kept, files = node_status.parse_reserved(settings.kube_reserved, settings.system_reserved), CgroupfsDriver()
        room = PodsCapacity(host.cpus, host.memory - kept.memory, settings.pod_pids_limit, settings.cpu_cfs_quota)
        return WorkerDependencies(
            docker=self._docker,
            cache=self._cache,
            network=self._network,
            host=host,
            node_address=settings.node_ip,
            pause_image=settings.pause_image,
            report=self._report,
            gone=self._pod_gone,
            event=self.recorder.pod_event,
            references=ObjectCache(self._client, self._spawn, self._wake_worker),
            probing=ProbeDependencies(prober, random.random, steady_clock(), ProbeMetrics()),
            tokens=TokenCache(self._client),
            services=self._services.known,
            cgroups=CgroupManager(self._docker, files, SystemdDriver(files), settings.cgroup_root, room, self._here),
        )

    def work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """All that runs as long as the daemon, but for what writes to the host's network.

        Workers are woken when something happens to their containers.
        """
        yield self.node_status.loop.run()
        yield self.lease.loop.run()
        yield self.node.informer.run()
        yield self.statuses.loop.run()
        yield self.recorder.loop.run()
        yield self.loop.run()
        yield self.sandbox_gc.loop.run()
        yield self._tools.cgroups.loop.run()
        yield self.pleg.loop.run()
        yield self.static.run()
        yield self.mirror.run()
        yield self._services.mirror.run()
        yield self.mirroring.loop.run()
        yield from (loop.run() for loop in (*self._gc_loops(), *self.evictor.loops))
        yield self.pleg.watch_events()

    def stuck(self) -> str:
        """What of the work has come to a halt; empty when nothing has."""
        silence = self.loop.seconds_since_last_pass
        return f"no look at the pods for {silence:.0f}s" if silence > 2 * HOUSEKEEPING_SECONDS else ""

    def _master_changed(self) -> None:
        self.loop.wake()
        self.mirroring.loop.wake()
        self.statuses.loop.wake()

    def _wake_worker(self, uid: str) -> None:
        worker = self._workers.get(uid)
        if worker is not None:
            worker.wake()

    def _wake_everyone(self) -> None:
        self.node_status.loop.wake()
        self.sandbox_gc.loop.wake()
        self._tools.cgroups.invalidate_driver()
        self._wake_workers()

    def _wake_workers(self) -> None:
        for worker in self._workers.values():
            worker.wake()

    async def _merge(self) -> None:
        """Give every wanted pod a worker; once every source has spoken, let go of those nobody wants.

        A source may speak while this waits for something: what it said then is not yet among what is wanted here.
        """
        all_spoke = self.mirror.synced and self.static.seen
        wanted, doubles = merge_sources((*self.static.offers, SourcePods("the master", self._from_master())))
        self._tell_of(doubles)
        undecided, began = 0, await self._began(wanted.keys())
        for uid, pod in sorted(wanted.items(), key=lambda row: row[0] not in began):
            worker = self._workers.get(uid)
            if worker is None:
                undecided += await self._take_up(pod, wanted.keys(), admitted=uid in began)
            elif _wish(worker.pod) != _wish(pod):
                worker.update(pod)
        self._recollection.give(self._on_master(), self._workers)
        for uid in self._on_master().keys() & self._workers.keys() - self.statuses.said():
            self._report(uid, self._workers[uid].pod.status)
        self._waiting = wanted.keys() - self._workers.keys()
        self.mirroring.loop.wake()
        if all_spoke:
            for uid in self._workers.keys() - wanted.keys():
                if not self._workers[uid].leaving:
                    self._workers[uid].leave()
            if time.monotonic() >= self._sweep_due:
                await self._sweep(set(wanted))
                self._sweep_due = time.monotonic() + HOUSEKEEPING_SECONDS
            self._begin_housekeeping()
        if undecided:
            raise NotReady(f"{undecided} pods wait for the master to say what it knows of this node")

    def _begin_housekeeping(self) -> None:
        """Once it is known which pods there are, those who look after all of them need not wait for their next turn."""
        if not self._complete:
            self._complete = True
            for loop in (self.mirroring.loop, *self._gc_loops(), *self.evictor.loops):
                loop.wake()

    async def _began(self, wanted: Collection[str]) -> set[str]:
        """Pods that an earlier agent let in, as their directories tell: they come first, and are not asked again."""
        if self._workers.keys() >= set(wanted):
            return set()
        return await asyncio.to_thread(runtime_pod_dir.list_pod_dirs, self._tools.host)

    def _on_master(self) -> dict[str, Pod]:
        """What the master shows, by the UIDs that pods have here: a mirror pod stands for the static one."""
        shown = self.mirror.items.values()
        return {pod.metadata.annotations.get(CONFIG_MIRROR, pod.metadata.uid): pod for pod in shown}

    def _from_master(self) -> tuple[Pod, ...]:
        """Oldest first; mirror pods only show what comes from elsewhere."""
        pods = (from_master(pod) for pod in self.mirror.items.values() if not is_mirror(pod))
        return tuple(sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", namespaced_name(pod))))

    def _tell_of(self, doubles: tuple[DuplicatePod, ...]) -> None:
        for double in doubles:
            if double.pod.metadata.uid not in self._doubles:
                places = {"pod": "/".join(namespaced_name(double.pod)), "place": double.place, "first": double.first}
                log.warning("a second pod of this name is left out", extra=places)
                words = f"Duplicate pod name, ignoring that from {double.place}: {double.first} has it"
                self.recorder.pod_event(double.pod, "FailedValidation", words)
        self._doubles = frozenset(double.pod.metadata.uid for double in doubles)

    def _shown(self) -> StaticPods:
        """Static pods: what a pod that goes was is shown until it is gone."""
        running = {uid: worker.pod for uid, worker in self._workers.items() if is_static(worker.pod)}
        return StaticPods(running, frozenset(self._waiting), complete=self._complete)

    async def _take_up(self, pod: Pod, wanted: Collection[str], *, admitted: bool) -> bool:
        """Give the pod a worker, unless it has to wait. Returns whether only the master can say if it may run."""
        uid = pod.metadata.uid
        if self.statuses.is_ending(uid) or (is_static(pod) and await self._waits(pod, wanted)):
            return False
        verdict = await (self._door.earlier(pod) if admitted else self._door.decide(pod, self._workers))
        if isinstance(verdict, Rejection):
            pod = replace(pod, status=rejected_status(pod, verdict.reason, verdict.message))
            if not admitted:
                self._tools.event(pod, verdict.reason, verdict.message, "")
        elif verdict is not AdmitResult.ADMITTED:
            return verdict is AdmitResult.UNDECIDED
        worker = PodWorker(pod, self._tools)
        self._workers[uid] = worker
        self._spawn(worker.run())
        if isinstance(verdict, Rejection):
            self._report(uid, pod.status)
        return False

    async def _waits(self, pod: Pod, wanted: Collection[str]) -> bool:
        """A static pod comes in the place of the one that had its name, when nothing is left of that one.

        The other one goes at once, even if the master is away: it may be what the master runs in.
        """
        name = namespaced_name(pod)
        found = await self._docker.list_pods()
        left = {
            uid for uid, row in found.items() if (row.get(container.POD_NAMESPACE), row.get(container.POD_NAME)) == name
        }
        others = left | {uid for uid, worker in self._workers.items() if namespaced_name(worker.pod) == name}
        others -= {pod.metadata.uid}
        for uid in others - set(wanted):
            if uid not in self._workers:
                self._clear_away(uid, found[uid])
            elif not self._workers[uid].leaving:
                self._workers[uid].leave()
        return bool(others)

    async def _sweep(self, wanted: set[str]) -> None:
        """What a pod left behind that was deleted while this agent was away."""
        found = await self._docker.list_pods()
        on_disk = await asyncio.to_thread(runtime_pod_dir.list_pod_dirs, self._tools.host)
        for uid in on_disk | await self._tools.cgroups.list_pod_uids() | found.keys():
            if uid not in wanted and uid not in self._workers:
                self._clear_away(uid, found.get(uid, {}))

    def _clear_away(self, uid: str, labels: dict[str, str]) -> None:
        worker = PodWorker(from_master(_remains(uid, labels)), self._tools)
        worker.leave()
        self._workers[uid] = worker
        self._spawn(worker.run())

    def _evictable(self) -> dict[str, PodWorker]:
        """Pods of the master that run or are to run; static pods stay. None before all of them are known."""
        if not self.mirror.synced:
            return {}
        here = ((uid, self._workers.get(uid)) for uid in {pod.metadata.uid for pod in self.mirror.items.values()})
        return {uid: one for uid, one in here if one is not None and one.pod.status.phase not in FINAL_PHASES}

    def _here(self) -> tuple[Pod, ...]:
        """Pods that have not ended."""
        here = (worker.pod for worker in self._workers.values())
        return tuple(pod for pod in here if pod.status.phase not in FINAL_PHASES)

    def _claims(self, pod: Pod) -> dict[str, str]:
        known = self._tools.references.known
        named = known(pod_refs(pod))
        return claim_paths(pod, {**named, **known(claimed_volumes(named))}, pod_dir(self._tools.host, pod.metadata.uid))

    def _gc_loops(self) -> tuple[Loop, ...]:
        return self.log_linker.loop, self.container_gc.loop, self.image_gc.loop

    async def _reclaim(self) -> None:
        await self.container_gc.collect()
        await self.image_gc.remove_unused_images()

    def _pod_gone(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        self._cache.forget(uid)
        self._tools.probing.counts.forget(uid)
        self.host_ports.loop.wake()
        deleted = {pod.metadata.uid for pod in self.mirror.items.values() if pod.metadata.deletion_timestamp}
        if worker is not None and uid in deleted:
            self.statuses.end(worker.pod)
        else:
            self.statuses.forget(uid)
        self.loop.wake()

    def _all_pods_known(self) -> bool:
        return self.mirror.synced and self.static.seen

    def _report(self, uid: str, status: PodStatus) -> None:
        self.host_ports.loop.wake()
        worker = self._workers.get(uid)
        if worker is not None and uid in self._on_master() and self._recollection.may_tell(worker.pod):
            self.statuses.say(worker.pod, status)
        if status.phase in FINAL_PHASES:
            self.loop.wake()  # There may be room now for another.

    def _pressure(self) -> Pressure:
        return self.evictor.pressure

    def _reattach(self) -> None:
        """Every pod needs an address of the node's other subnet."""
        for worker in self._workers.values():
            worker.reattach()


def _node_identity(settings: Settings) -> NodeIdentity:
    return NodeIdentity(
        name=settings.node_name,
        address=settings.node_ip,
        max_pods=settings.max_pods,
        port=settings.port,
        taints=tuple(map(parse_taint, settings.register_with_taints)),
        reserved=node_status.parse_reserved(settings.kube_reserved, settings.system_reserved),
    )


def _host(settings: Settings) -> HostInfo:
    found = host_facts.read_host_info(Path(settings.state_dir))
    return dataclasses.replace(
        found,
        cluster_domain=settings.cluster_domain,
        cluster_dns=settings.cluster_dns,
        resolv_conf=settings.resolv_conf,
        pod_logs_dir=settings.pod_logs_dir,
        seccomp_default=settings.seccomp_default,
        cpu_cfs_quota=settings.cpu_cfs_quota,
    )


def _wish(pod: Pod) -> Pod:
    """What counts as a change: everything but that part of the status which this agent writes itself."""
    theirs = PodStatus(conditions=foreign_conditions(pod.status.conditions))
    return replace(pod, status=theirs, metadata=replace(pod.metadata, resource_version="", managed_fields=None))


def _remains(uid: str, labels: dict[str, str]) -> Pod:
    """A pod of which only the marks on its containers are known."""
    meta = ObjectMeta(
        name=labels.get(container.POD_NAME, "unknown"), namespace=labels.get(container.POD_NAMESPACE, ""), uid=uid
    )
    return Pod(
        metadata=meta, spec=PodSpec(termination_grace_period_seconds=container.int_label(labels, container.GRACE, 2))
    )


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
            health = Health(settings.health_address, lambda: agent.node_status.not_ready_reason, agent.stuck)
            await health.start()
            notify("READY=1")
            try:
                for loop in (agent.host_ports.loop, identity.loop, certificate.loop):
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
