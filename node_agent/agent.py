"""The node agent: merges the sources of pods, keeps one worker for each, and tells the master how they are."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from api.client import AlreadyExists, ApiError, Client, ClientError, Conflict, NotFound
from api.mirror import Mirror
from api.objects import Node, ObjectMeta, Pod, PodSpec, PodStatus
from node_agent import host_ports
from node_agent import observed as label
from node_agent.containers import Host
from node_agent.drivers import host as directories
from node_agent.drivers import nft
from node_agent.drivers.cgroups import Cgroups
from node_agent.drivers.docker import Docker
from node_agent.drivers.probe import Prober
from node_agent.evictor import Evictor
from node_agent.housekeeping import Housekeeping
from node_agent.lost_sandboxes import detach_lost
from node_agent.node import new_node, node_status
from node_agent.plan import FINAL_PHASES
from node_agent.pod_cgroups import PodCgroups
from node_agent.pod_network import SandboxNetwork
from node_agent.pod_worker import PodWorker
from node_agent.prober import Probing, steady
from node_agent.recorder import Recorder
from node_agent.references import References
from node_agent.settings import Settings
from node_agent.sources import Manifests
from node_agent.status import merged
from node_agent.tokens import Tokens
from node_agent.tools import Tools
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 60.0
NO_PORTS = host_ports.table(())


class Agent:
    """`spawn` starts a task that lives as long as the daemon."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        docker: Docker,
        network: SandboxNetwork,
        prober: Prober,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.unready = "starting"
        self._settings = settings
        self._client = client
        self._docker = docker
        self._network = network
        self._spawn = spawn
        self._workers: dict[str, PodWorker] = {}
        self._statuses: dict[str, PodStatus] = {}
        self._written: dict[str, int] = {}
        self._subnet = ""
        self._ports_written = ""
        self._ended: dict[str, Pod] = {}
        self.recorder = Recorder(client, settings.node_name)
        self._tools = Tools(
            docker=docker,
            network=network,
            host=_host(settings),
            node_address=settings.node_ip,
            pause_image=settings.pause_image,
            report=self._report,
            gone=self._pod_gone,
            event=self.recorder.about_pod,
            references=References(client, spawn, self._wake_worker),
            probing=Probing(prober, random.random, steady()),
            tokens=Tokens(client),
            cgroups=PodCgroups(docker, Cgroups(), settings.cgroup_root),
        )
        selector = f"spec.nodeName={settings.node_name}"
        self.loop = Loop("pods", self._merge, Pace(resync=HOUSEKEEPING_SECONDS))
        self.writer = Loop("statuses", self._write_statuses, Pace(resync=HOUSEKEEPING_SECONDS, last_retry=5.0))
        self.detacher = Loop("lost sandboxes", self._detach_lost, Pace(resync=HOUSEKEEPING_SECONDS))
        self.ports = Loop("host ports", self._write_ports, Pace(resync=HOUSEKEEPING_SECONDS))
        self.heart = Loop("node", self._beat, Pace(resync=settings.heartbeat_seconds, last_retry=2.0))
        self.housekeeping = Housekeeping(settings, docker, network, lambda: frozenset(self._workers))
        self.evictor = Evictor(
            settings, docker, self._tools.host, self._evictable, self.housekeeping.reclaim, self.heart.wake
        )
        self.manifests = Manifests(Path(settings.manifest_dir), settings.node_name, self.loop.wake)
        self.mirror = Mirror(client, Pod, field_selector=selector, on_change=self.loop.wake)

    async def follow_docker(self) -> None:
        """Wake workers when something happens to their containers."""
        await self._docker.follow(self._wake_worker, self._wake_everyone)

    def _wake_worker(self, uid: str) -> None:
        worker = self._workers.get(uid)
        if worker is not None:
            worker.wake()
        self.housekeeping.container_changed()

    def _wake_everyone(self) -> None:
        self.heart.wake()
        self.detacher.wake()
        for worker in self._workers.values():
            worker.wake()

    async def _merge(self) -> None:
        """Give every wanted pod a worker; once every source has spoken, let go of those nobody wants."""
        wanted = {**{pod.metadata.uid: pod for pod in self.mirror.items.values()}, **self.manifests.pods}
        for uid, pod in wanted.items():
            worker = self._workers.get(uid)
            if worker is None:
                self._take_up(pod)
            elif _wish(worker.pod) != _wish(pod):
                worker.update(pod)
            elif self._is_overwritten(pod, worker.pod.status):
                self._report(uid, worker.pod.status)
        if self.mirror.synced and self.manifests.seen:
            for uid in self._workers.keys() - wanted.keys():
                if not self._workers[uid].leaving:
                    self._workers[uid].leave()
            await self._sweep(set(wanted))

    def _is_overwritten(self, pod: Pod, ours: PodStatus) -> bool:
        """Whether somebody else has changed, after our last write, what is ours to say."""
        ours_at = self._written.get(pod.metadata.uid)
        newer = ours_at is not None and int(pod.metadata.resource_version) > ours_at
        return newer and merged(ours, pod.status) != pod.status

    def _take_up(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._ended:
            return
        worker = PodWorker(pod, self._tools)
        self._workers[uid] = worker
        self._spawn(worker.run())

    async def _sweep(self, wanted: set[str]) -> None:
        """What a pod left behind that was deleted while this agent was away."""
        found = await self._docker.pods()
        on_disk = await asyncio.to_thread(directories.known_pods, self._tools.host)
        for uid in on_disk | found.keys():
            if uid not in wanted and uid not in self._workers:
                worker = PodWorker(_remains(uid, found.get(uid, {})), self._tools)
                worker.leave()
                self._workers[uid] = worker
                self._spawn(worker.run())

    def _evictable(self) -> dict[str, PodWorker]:
        """Pods of the master that run or are to run; static pods stay. None before all of them are known."""
        if not self.mirror.synced:
            return {}
        here = ((uid, self._workers.get(uid)) for uid in {pod.metadata.uid for pod in self.mirror.items.values()})
        return {uid: one for uid, one in here if one is not None and one.pod.status.phase not in FINAL_PHASES}

    async def _detach_lost(self) -> None:
        await detach_lost(self._docker, self._network)

    def _pod_gone(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        self._statuses.pop(uid, None)
        self._written.pop(uid, None)
        self.ports.wake()
        if worker is not None and uid in {pod.metadata.uid for pod in self.mirror.items.values()}:
            self._ended[uid] = worker.pod
            self.writer.wake()
        self.loop.wake()

    async def _write_ports(self) -> None:
        """The ports of this host that lead to pods; not before it is known which pods there are."""
        if not (self.mirror.synced and self.manifests.seen):
            return
        here = (worker.pod for worker in self._workers.values())
        wish = host_ports.table(pod for pod in here if pod.status.phase not in FINAL_PHASES)
        if wish != self._ports_written or wish != NO_PORTS:
            await nft.apply(wish)
            self._ports_written = wish

    def _report(self, uid: str, status: PodStatus) -> None:
        self.ports.wake()
        if uid not in self.manifests.pods:
            self._statuses[uid] = status
            self.writer.wake()

    async def _write_statuses(self) -> None:
        """Only the newest status of each pod; what cannot be written now waits for the next pass."""
        while self._statuses:
            uid, status = next(iter(self._statuses.items()))
            worker = self._workers.get(uid)
            if worker is not None:
                await self._to_master(self._write_status(worker.pod.metadata, status))
            if self._statuses.get(uid) is status:
                del self._statuses[uid]
        while self._ended:
            uid, pod = next(iter(self._ended.items()))
            await self._to_master(self._delete(pod.metadata))
            del self._ended[uid]

    async def _write_status(self, meta: ObjectMeta, status: PodStatus) -> None:
        current = await self._client.get(Pod, meta.name, meta.namespace)
        if current.metadata.uid == meta.uid:
            written = await self._client.update_status(replace(current, status=merged(status, current.status)))
            self._written[meta.uid] = int(written.metadata.resource_version)

    async def _delete(self, meta: ObjectMeta) -> None:
        await self._client.delete(Pod, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)

    async def _to_master(self, request: Awaitable[object]) -> None:
        """An object that is gone or has changed needs no more words; a master that is away is asked again."""
        try:
            await request
        except NotFound:
            return
        except Conflict as error:
            if "precondition" in str(error).lower() or "uid" in str(error).lower():
                return
            raise NotReady(str(error)) from None
        except ApiError as error:
            log.warning("the master refused", extra={"error": error})
        except ClientError as error:
            raise NotReady(str(error)) from None

    async def _beat(self) -> None:
        """Tell the master that this node lives, and whether pods can run here."""
        self.unready = await self._trouble()
        try:
            version = await self._docker.version()
        except DriverError:
            version = ""
        facts = await asyncio.to_thread(directories.facts, Path(self._settings.state_dir), version)
        name, address, now = self._settings.node_name, self._settings.node_ip, datetime.now(UTC)
        try:
            await self._write_node(name, address, facts, now)
        except ClientError as error:
            raise NotReady(str(error)) from None

    async def _write_node(self, name: str, address: str, facts: Any, now: datetime) -> None:
        try:
            node = await self._client.get(Node, name)
        except NotFound:
            try:
                await self._client.create(new_node(name, address, facts, self.unready, now))
                log.info("registered", extra={"node": name, "address": address})
            except AlreadyExists:
                self.heart.wake()
            return
        status = node_status(name, address, facts, self.unready, now, node.status.conditions, self.evictor.pressure)
        await self._client.patch_status(Node, name, "", {"status": msgspec.to_builtins(status)})
        if self.unready:
            raise NotReady(self.unready)

    async def _trouble(self) -> str:
        try:
            await self._docker.version()
            subnet = (await self._network.status()).subnet
        except DriverError as error:
            return str(error)
        if self._subnet not in {"", subnet}:
            log.warning("this node has another subnet", extra={"subnet": subnet, "before": self._subnet})
            for worker in self._workers.values():
                worker.reattach()
        self._subnet = subnet
        return ""


def _host(settings: Settings) -> Host:
    found = directories.host(Path(settings.state_dir))
    return dataclasses.replace(
        found,
        cluster_domain=settings.cluster_domain,
        cluster_dns=settings.cluster_dns,
        resolv_conf=settings.resolv_conf,
    )


def _wish(pod: Pod) -> Pod:
    """What counts as a change: everything but the status, which this agent writes itself."""
    return replace(pod, status=PodStatus(), metadata=replace(pod.metadata, resource_version="", managed_fields=None))


def _remains(uid: str, labels: dict[str, str]) -> Pod:
    """A pod of which only the marks on its containers are known."""
    meta = ObjectMeta(
        name=labels.get(label.POD_NAME, "unknown"), namespace=labels.get(label.POD_NAMESPACE, ""), uid=uid
    )
    return Pod(metadata=meta, spec=PodSpec(termination_grace_period_seconds=int(labels.get(label.GRACE, "2"))))
