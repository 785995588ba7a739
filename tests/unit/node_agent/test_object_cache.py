"""Objects that pods reference are watched one by one, while they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.config import ConfigMap, Secret
from api.core.references import Reference
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_SOURCE
from node_agent import object_cache as references
from node_agent.object_cache import ROOT_CA, NotSynced, ObjectCache, ServiceLister
from node_agent.sources.file import FileSource
from reconcile.errors import NotReady
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import make_pod
from tests.unit.node_agent.object_server import ObjectServer

SETTINGS = Reference(ConfigMap, "red", "settings")
PASSWORD = Reference(Secret, "red", "password")
PATH = "/api/v1/namespaces/red/configmaps?metadata.name=settings"


def config(text: str, *, immutable: bool | None = None) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="settings", namespace="red"), data={"a": text}, immutable=immutable)


@dataclass
class Node:
    server: ObjectServer
    references: ObjectCache
    woken: list[str] = field(default_factory=list)

    def content(self) -> object:
        """Return the text of the settings, None if there are none, or the reason if they are not synced."""
        try:
            settings = self.references.get((SETTINGS,)).get(SETTINGS)
        except NotReady as error:
            return error
        assert settings is None or isinstance(settings, ConfigMap)
        return settings and settings.data["a"]


async def condition(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    server, tasks = ObjectServer(), list[asyncio.Task[None]]()
    async with server.client() as client:

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        host = Node(server, ObjectCache(client, spawn, lambda uid: host.woken.append(uid)))
        yield host
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_object_is_available_once_synced_and_its_pods_are_woken(node: Node) -> None:
    node.references.set_needed("one", (SETTINGS,))
    assert isinstance(node.content(), NotReady)
    await condition(lambda: node.content() is None)
    await condition(lambda: node.server.watched == [PATH])
    node.server.put(config("first"))
    await condition(lambda: node.content() == "first")
    node.references.set_needed("two", (SETTINGS, PASSWORD))
    node.woken.clear()
    node.server.put(config("second"))
    await condition(lambda: node.content() == "second")
    assert {"one", "two"} <= set(node.woken)
    assert node.server.watched.count(PATH) == 1
    node.server.delete(config(""))
    await condition(lambda: node.content() is None)


async def test_object_without_a_referencing_pod_is_not_watched(node: Node) -> None:
    node.references.set_needed("one", (SETTINGS,))
    node.references.set_needed("two", (SETTINGS,))
    await condition(lambda: node.server.watched == [PATH])
    node.references.set_needed("one", ())
    node.server.put(config("first"))
    await condition(lambda: node.content() == "first")
    node.references.set_needed("two", (PASSWORD,))
    await condition(lambda: node.server.watched == ["/api/v1/namespaces/red/secrets?metadata.name=password"])


async def test_first_sync_is_awaited_with_a_timeout(node: Node) -> None:
    node.server.put(config("first"))
    node.references.set_needed("one", (SETTINGS,))
    await node.references.wait_until_synced((SETTINGS,))
    assert node.content() == "first"
    node.server.refusal = 403
    node.references.set_needed("one", (SETTINGS, PASSWORD))
    await node.references.wait_until_synced((SETTINGS, PASSWORD))
    with pytest.raises(NotReady):
        node.references.get((PASSWORD,))


async def test_root_ca_config_map_stays_cached_for_the_next_pod(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    root, path = Reference(ConfigMap, "red", ROOT_CA), f"/api/v1/namespaces/red/configmaps?metadata.name={ROOT_CA}"
    node.references.set_needed("one", (root, SETTINGS))
    await node.references.wait_until_synced((root, SETTINGS))
    await condition(lambda: sorted(node.server.watched) == sorted((path, PATH)))
    node.references.set_needed("one", ())
    await condition(lambda: node.server.watched == [path])
    node.references.set_needed("two", (root,))
    assert node.references.get((root,)) == {}
    monkeypatch.setattr(references, "ROOT_CA_LINGER_SECONDS", 0.0)
    node.references.set_needed("two", ())
    await condition(lambda: node.server.watched == [])


async def test_immutable_object_is_not_watched(node: Node) -> None:
    node.server.put(config("for ever", immutable=True))
    node.references.set_needed("one", (SETTINGS,))
    await condition(lambda: node.content() == "for ever")
    node.references.set_needed("two", (PASSWORD,))
    await condition(lambda: node.server.watched == ["/api/v1/namespaces/red/secrets?metadata.name=password"])
    assert node.content() == "for ever"


async def test_rejected_watch_is_reported(node: Node) -> None:
    node.server.refusal = 403
    node.references.set_needed("one", (SETTINGS,))
    await condition(lambda: str(node.content()) == 'configmap "settings": not for you')


STATIC = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: red}
spec:
  containers: [{name: main, image: toolbox}]
"""


@pytest.mark.parametrize(
    ("volumes", "count"),
    [
        ("[{name: v, emptyDir: {}}]", 1),
        ("[{name: v, configMap: {name: c}}]", 0),
        ("[{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]", 0),
    ],
)
async def test_static_pod_references_no_objects(volumes: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(f"{STATIC}  volumes: {volumes}\n")
    manifests = FileSource(tmp_path, "node-1", "file", lambda: None, FakeEventRecorder())
    await manifests.read()
    assert len([pod for source in manifests.source_pods for pod in source.pods]) == count


STATIC_POD = make_pod()
POD = replace(STATIC_POD, metadata=replace(STATIC_POD.metadata, annotations={CONFIG_SOURCE: "api"}))


async def follow_services(refusal: int, condition: Callable[[ServiceLister], bool]) -> tuple[ServiceLister, int]:
    """Return the services of an API server, and the number of wake-ups."""
    server, woken = ObjectServer(), list[None]()
    server.refusal = refusal
    async with server.client() as client:
        services = ServiceLister(client, lambda: woken.append(None))
        with pytest.raises(NotSynced):
            services.list(POD)
        task = asyncio.create_task(services.informer.run())
        async with asyncio.timeout(10):
            while not condition(services):
                await asyncio.sleep(0.001)
        task.cancel()
    return services, len(woken)


@pytest.mark.parametrize("refusal", [0, 404], ids=["none", "no such kind"])
async def test_pods_start_without_services_when_the_api_has_none(refusal: int) -> None:
    services, woken = await follow_services(refusal, lambda lister: lister.informer.synced)
    assert (list(services.list(POD)), woken) == ([], 1)


async def test_forbidden_service_list_delays_api_pods_and_not_static_ones() -> None:
    services, woken = await follow_services(403, lambda lister: bool(lister.informer.last_error))
    with pytest.raises(NotReady, match="services: not for you"):
        services.list(POD)
    assert (list(services.list(STATIC_POD)), woken) == ([], 0)
