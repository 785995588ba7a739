"""One node with a real master: the complete agent, a Docker in memory, and the state that survives the agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.events import Event
from api.core.node import Node
from api.core.pod import Pod
from master.app import run_master
from master.config import MasterConfig as MasterSettings
from node_agent.app import Agent, Clients, build_agent
from node_agent.config import Settings
from node_agent.network.sdn import SdnNetwork
from node_agent.probes.prober import Prober
from node_agent.volumes import mounts
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.fake_host import FakeSdnDaemon

SECONDS = 6.0
TEXT = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: toolbox}]
"""


class OneNode:
    """A node and its master. `admin` is a client of the master; manifests are files in `manifests`."""

    def __init__(self, root: Path, admin: Client, network: SdnNetwork) -> None:
        self.root = root
        self.admin = admin
        self.docker = FakeDocker("podlane/pause", "toolbox", "toolbox:2")
        self.manifests = root / "manifests"
        self.manifests.mkdir()
        self.settings = Settings(
            node_name="node-1",
            node_ip="10.245.2.3",
            kubeconfig=str(root / "kubeconfig"),
            state_dir=str(root / "agent"),
            manifest_dir=str(self.manifests),
            socket=str(root / "agent.sock"),
            heartbeat_seconds=0.2,
        )
        self._network = network

    def write(self, name: str, text: str = TEXT, file: str = "") -> None:
        """Write a manifest atomically."""
        part = self.root / "part"
        part.write_text(text.replace("NAME", name))
        part.rename(self.manifests / (file or f"{name}.yaml"))

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """Run an agent until the end of the block."""
        async with (
            Client(Kubeconfig.load(self.settings.kubeconfig)) as client,
            Prober(self.docker) as prober,
            asyncio.TaskGroup() as tasks,
        ):
            spawned: list[asyncio.Task[None]] = []

            def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
                spawned.append(tasks.create_task(work))
                return spawned[-1]

            clients = Clients(api=client, docker=self.docker, network=self._network, prober=prober)
            agent = build_agent(self.settings, clients, spawn)
            spawned += [tasks.create_task(loop) for loop in agent.loops()]
            try:
                yield agent
            finally:
                for task in spawned:
                    task.cancel()

    async def pod(self, name: str) -> Pod | None:
        """Return a pod of the master, None if there is none."""
        try:
            return await self.admin.get(Pod, name, "default")
        except NotFound:
            return None

    async def until_shown(self, name: str, condition: Callable[[Pod], bool] = lambda pod: True) -> Pod:
        """Wait until the master has the pod with this property, and return the pod."""
        result: list[Pod] = []

        async def is_shown() -> bool:
            pod = await self.pod(name)
            result[:] = [pod] if pod is not None and condition(pod) else []
            return bool(result)

        await until_true(is_shown)
        return result[0]

    async def node_is_known(self) -> bool:
        """Return whether the node has registered."""
        return bool((await self.admin.list(Node)).items)

    async def event_counts(self, reason: str) -> list[int]:
        """Return how often each event of this reason was recorded."""
        return [event.count for event in (await self.admin.list(Event)).items if event.reason == reason]

    async def until_gone(self, name: str) -> None:
        """Wait until the master has no such pod."""

        async def is_gone() -> bool:
            return await self.pod(name) is None

        await until_true(is_gone)

    def sandboxes(self) -> dict[str, str]:
        """Return the name of each pod with a running sandbox, by UID."""
        return {
            container.pod_uid: container.labels["io.kubernetes.pod.name"]
            for container in self.docker.find("POD")
            if container.running
        }


async def until_true(condition: Callable[[], object]) -> None:
    """Wait until `condition`, a function or a coroutine function, returns a true value."""
    async with asyncio.timeout(SECONDS):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def one_node(root: Path) -> AsyncIterator[OneNode]:
    """Run a master, and yield a node that has its certificate."""
    master_settings = MasterSettings(
        state_dir=str(root / "master"), advertise_address="127.0.0.1", listen_address="127.0.0.1", port=0
    )
    (root / "master").mkdir(parents=True)
    switch = FakeSdnDaemon()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(mounts.unmount_all, root)
        master = await stack.enter_async_context(run_master(master_settings))
        administrator = Kubeconfig.load(master.kubeconfig)
        admin = await stack.enter_async_context(Client(administrator))
        (root / "kubeconfig").write_text(await node_kubeconfig(admin, administrator, "node-1"))
        await stack.enter_async_context(switch.serving(root / "sdn.sock"))
        network = await stack.enter_async_context(SdnNetwork(str(root / "sdn.sock")))
        yield OneNode(root, admin, network)
