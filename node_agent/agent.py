"""The node agent: merges the sources of pods, keeps one worker for each, and tells the master how they are."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from api.client import Client
from api.mirror import Mirror
from api.objects import ObjectMeta, Pod, PodSpec, PodStatus
from node_agent import host_ports
from node_agent import observed as label
from node_agent.conditions import others
from node_agent.containers import Host
from node_agent.drivers import host as directories
from node_agent.drivers import nft
from node_agent.drivers.cgroups import Cgroups
from node_agent.drivers.docker import Docker
from node_agent.drivers.network import PodNetwork
from node_agent.lost_sandboxes import detach_lost
from node_agent.node import Health, Identity, Pressure, parse_taint
from node_agent.node_report import NodeReport
from node_agent.plan import FINAL_PHASES
from node_agent.pod_cgroups import PodCgroups
from node_agent.pod_worker import PodWorker
from node_agent.recorder import Recorder
from node_agent.references import References
from node_agent.settings import Settings
from node_agent.sources import Manifests
from node_agent.status_writer import StatusWriter
from node_agent.tokens import Tokens
from node_agent.tools import Tools
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 60.0
NO_PORTS = host_ports.table(())

FAST_SECONDS, FAST_STEP_SECONDS = 120.0, 0.1
"""So long after a start, until the node is Ready for the first time, it is looked at again after each step."""


class Agent:
    """`spawn` starts a task that lives as long as the daemon."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        docker: Docker,
        network: PodNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.unready = "starting"
        self._settings = settings
        self._client = client
        self._docker = docker
        self._network = network
        self._spawn = spawn
        self._workers: dict[str, PodWorker] = {}
        self._subnet = ""
        self._ports_written = ""
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
            tokens=Tokens(client),
            cgroups=PodCgroups(docker, Cgroups(), settings.cgroup_root),
        )
        selector = f"spec.nodeName={settings.node_name}"
        self.loop = Loop("pods", self._merge, Pace(resync=HOUSEKEEPING_SECONDS))
        self.statuses = StatusWriter(client, self._shown)
        self.detacher = Loop("lost sandboxes", self._detach_lost, Pace(resync=HOUSEKEEPING_SECONDS))
        self.ports = Loop("host ports", self._write_ports, Pace(resync=HOUSEKEEPING_SECONDS))
        self.heart = Loop("node", self._beat, Pace(resync=settings.heartbeat_seconds, last_retry=2.0))
        identity = Identity(
            name=settings.node_name,
            address=settings.node_ip,
            max_pods=settings.max_pods,
            taints=tuple(parse_taint(text) for text in settings.register_with_taints),
        )
        self.node = NodeReport(client, identity, settings.heartbeat_seconds, self.recorder.about, self.heart.wake)
        self.pressure = Pressure()
        self._fast_until = time.monotonic() + FAST_SECONDS
        self.manifests = Manifests(Path(settings.manifest_dir), settings.node_name, self.loop.wake)
        self.mirror = Mirror(client, Pod, field_selector=selector, on_change=self.loop.wake)

    async def follow_docker(self) -> None:
        """Wake workers when something happens to their containers."""
        await self._docker.follow(self._wake_worker, self._wake_everyone)

    def _wake_worker(self, uid: str) -> None:
        worker = self._workers.get(uid)
        if worker is not None:
            worker.wake()

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
        if self.mirror.synced and self.manifests.seen:
            for uid in self._workers.keys() - wanted.keys():
                if not self._workers[uid].leaving:
                    self._workers[uid].leave()
            await self._sweep(set(wanted))

    def _shown(self) -> dict[str, Pod]:
        return {pod.metadata.uid: pod for pod in self.mirror.items.values()}

    def _take_up(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self.statuses.is_ending(uid):
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

    async def _detach_lost(self) -> None:
        await detach_lost(self._docker, self._network)

    def _pod_gone(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        self.ports.wake()
        if worker is not None and uid in self._shown():
            self.statuses.end(worker.pod)
        else:
            self.statuses.forget(uid)
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
        worker = self._workers.get(uid)
        if worker is not None and uid in self._shown():
            self.statuses.say(worker.pod, status)

    async def _beat(self) -> None:
        """Tell the master how this node is, and whether pods can run here."""
        self.unready = await self._trouble()
        try:
            version, images = await self._docker.version(), await self._docker.image_sizes()
        except DriverError:
            version, images = "", ()
        facts = await asyncio.to_thread(directories.facts, Path(self._settings.state_dir), version, images)
        await self.node.write(facts, Health(self.unready, self.pressure), datetime.now(UTC))
        if not self.unready:
            self._fast_until = 0.0
        elif time.monotonic() < self._fast_until:
            asyncio.get_running_loop().call_later(FAST_STEP_SECONDS, self.heart.wake)
        else:
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
    """What counts as a change: everything but that part of the status which this agent writes itself."""
    theirs = PodStatus(conditions=others(pod.status.conditions))
    return replace(pod, status=theirs, metadata=replace(pod.metadata, resource_version="", managed_fields=None))


def _remains(uid: str, labels: dict[str, str]) -> Pod:
    """A pod of which only the marks on its containers are known."""
    meta = ObjectMeta(
        name=labels.get(label.POD_NAME, "unknown"), namespace=labels.get(label.POD_NAMESPACE, ""), uid=uid
    )
    return Pod(metadata=meta, spec=PodSpec(termination_grace_period_seconds=int(labels.get(label.GRACE, "2"))))
