"""The Kubernetes client for Python against a real master: its models accept every answer."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.informer.informer import ADDED, DELETED, MODIFIED, SharedInformer
from kubernetes.leaderelection import electionconfig
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.watch_clients import BALLAST, BALLAST_SIZE

T = TypeVar("T")

SAMPLES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text())
SECONDS = 30.0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.ApiClient]:
    server = ApiServer(tmp_path_factory.mktemp("master"))
    server.start()
    with config.new_client_from_config(str(server.kubeconfig)) as actual:
        yield actual
    assert server.stop() == 0


@pytest.fixture
def project(api: client.ApiClient, request: pytest.FixtureRequest) -> str:
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-") + f"-{digest}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    return name


def wait_for(holds: Callable[[], T], what: str) -> T:
    deadline = time.monotonic() + SECONDS
    while not (actual := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
        time.sleep(0.02)
    return actual


def operations(api: client.ApiClient, version: str, kind: str) -> tuple[Any, str]:
    """Return the client class of a group, and the name of a kind in its methods."""
    group, _, number = version.rpartition("/")
    part = "".join(word.capitalize() for word in group.removesuffix(".k8s.io").split(".")) or "Core"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    return getattr(client, f"{part}{number.capitalize()}Api")(api), name


def test_python_client_models_accept_an_object_of_every_kind(api: client.ApiClient, project: str) -> None:
    utils.create_from_yaml(api, yaml_objects=[dict(sample) for sample in SAMPLES], namespace=project)
    wait_for(lambda: client.CoreV1Api(api).list_namespaced_pod(project, label_selector="app=made").items, "pods")
    seen = {}
    for version, kind in sorted({(sample["apiVersion"], sample["kind"]) for sample in SAMPLES}):
        part, name = operations(api, version, kind)
        listed = getattr(part, f"list_{name}_for_all_namespaces", None) or getattr(part, f"list_{name}")
        seen[version, kind] = {obj.metadata.name for obj in listed().items}
    assert all(seen.values()), seen
    assert len(seen) == len(SAMPLES)
    assert {"default", project} <= {
        namespace.metadata.name for namespace in client.CoreV1Api(api).list_namespace().items
    }


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"by": "python"}), data=data)


def test_python_client_handles_pages_selectors_and_errors(api: client.ApiClient, project: str) -> None:
    core = client.CoreV1Api(api)
    for name in ("a", "b", "c"):
        core.create_namespaced_config_map(project, config_map(name))
    first = core.list_namespaced_config_map(project, label_selector="by=python", limit=2)
    assert [listed.metadata.name for listed in first.items] == ["a", "b"]
    rest = core.list_namespaced_config_map(
        project, label_selector="by=python", limit=2, _continue=first.metadata._continue
    )
    assert [listed.metadata.name for listed in rest.items] == ["c"]
    only = core.list_namespaced_config_map(project, field_selector="metadata.name=b").items
    assert [listed.metadata.name for listed in only] == ["b"]
    refused: list[tuple[int, Callable[[], object]]] = [
        (404, lambda: core.read_namespaced_config_map("none", project)),
        (409, lambda: core.create_namespaced_config_map(project, config_map("a"))),
        (422, lambda: core.create_namespaced_config_map(project, config_map("Bad_Name"))),
        (400, lambda: core.list_namespaced_config_map(project, label_selector="a in b")),
    ]
    for status, ask in refused:
        with pytest.raises(ApiException) as caught:
            ask()
        assert caught.value.status == status
    assert core.delete_namespaced_config_map("a", project)["status"] == "Success"
    left = core.delete_collection_namespaced_config_map(project, label_selector="by=python")
    assert left.status is None or left.status == "Success"
    assert core.list_namespaced_config_map(project, label_selector="by=python").items == []


def test_python_client_applies_every_patch_type(api: client.ApiClient, project: str) -> None:
    apps = client.AppsV1Api(api)
    (deployment,) = (dict(sample) for sample in SAMPLES if sample["kind"] == "Deployment")
    apps.create_namespaced_deployment(project, deployment)

    def patched(body: Any, content_type: str, **more: Any) -> Any:
        return apps.patch_namespaced_deployment("two", project, body, _content_type=content_type, **more).spec

    side = {"name": "side", "image": "b"}
    strategic = {"spec": {"template": {"spec": {"containers": [side]}}}}
    spec = patched(strategic, "application/strategic-merge-patch+json")
    assert [container.name for container in spec.template.spec.containers] == ["side", "main"]
    spec = patched({"spec": {"template": {"spec": {"containers": [side]}}}}, "application/merge-patch+json")
    assert [container.name for container in spec.template.spec.containers] == ["side"]
    spec = patched([{"op": "replace", "path": "/spec/replicas", "value": 3}], "application/json-patch+json")
    assert spec.replicas == 3
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "two"}, "spec": {"replicas": 5}}
    with pytest.raises(ApiException) as caught:
        patched(manifest, "application/apply-patch+yaml", field_manager="test")
    assert caught.value.status == 409
    assert patched(manifest, "application/apply-patch+yaml", field_manager="test", force=True).replicas == 5
    assert apps.patch_namespaced_deployment_scale("two", project, {"spec": {"replicas": 4}}).spec.replicas == 4
    assert apps.read_namespaced_deployment_scale("two", project).status.selector == "app=made"


def test_python_client_watch_resumes_and_reports_an_expired_revision(api: client.ApiClient, project: str) -> None:
    core = client.CoreV1Api(api)
    begin = core.list_namespaced_config_map(project).metadata.resource_version
    core.create_namespaced_config_map(project, config_map("seen", a="1"))
    core.patch_namespaced_config_map("seen", project, {"data": {"a": "2"}})
    core.delete_namespaced_config_map("seen", project)

    def watched_events(version: str | None, until: str) -> Iterator[tuple[str, str, str]]:
        stream = watch.Watch()
        for event in stream.stream(
            core.list_namespaced_config_map, project, resource_version=version, label_selector="by=python"
        ):
            obj = event["object"]
            yield event["type"], obj.data["a"], obj.metadata.resource_version
            if event["type"] == until:
                stream.stop()

    rows = list(watched_events(begin, "DELETED"))
    assert [event[:2] for event in rows] == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    assert list(watched_events(rows[0][2], "DELETED")) == rows[1:]
    for number in range(BALLAST):
        core.create_namespaced_config_map(project, config_map(f"ballast-{number}", filler="A" * BALLAST_SIZE))
    core.delete_collection_namespaced_config_map(project)
    with pytest.raises(ApiException) as caught:
        next(watch.Watch().stream(core.list_namespaced_config_map, project, resource_version="1", timeout_seconds=5))
    assert caught.value.status == 410


def test_python_client_informer_keeps_the_current_objects(api: client.ApiClient, project: str) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_config_map(project, config_map("before", a="1"))
    informer = SharedInformer(core.list_namespaced_config_map, namespace=project, label_selector="by=python")
    seen: list[tuple[str, str]] = []
    for kind in (ADDED, MODIFIED, DELETED):
        informer.add_event_handler(kind, lambda obj, kind=kind: seen.append((kind, obj.metadata.name)))
    informer.start()
    wait_for(lambda: seen == [("ADDED", "before")], "what was there before")
    core.create_namespaced_config_map(project, config_map("after"))
    core.patch_namespaced_config_map("before", project, {"data": {"a": "2"}})
    core.delete_namespaced_config_map("after", project)
    wait_for(lambda: ("DELETED", "after") in seen, "what went")
    assert seen[1:] == [("ADDED", "after"), ("MODIFIED", "before"), ("DELETED", "after")]
    assert [listed.data for listed in informer.cache.list()] == [{"a": "2"}]
    informer._stop_event.set()
    core.create_namespaced_config_map(project, config_map("last"))
    informer.stop()


def test_python_dynamic_client_discovers_kinds_and_applies(api: client.ApiClient, project: str) -> None:
    resources = dynamic.DynamicClient(api)
    maps = resources.resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    created = resources.server_side_apply(maps, body, namespace=project, field_manager="one")
    assert created.metadata.managedFields[0].manager == "one"
    with pytest.raises(ApiException) as caught:
        resources.server_side_apply(maps, body | {"data": {"a": "2"}}, namespace=project, field_manager="two")
    assert caught.value.status == 409
    forced = resources.server_side_apply(
        maps, body | {"data": {"a": "2"}}, namespace=project, field_manager="two", force_conflicts=True
    )
    assert forced.data.a == "2"
    net_namespaces = resources.resources.get(api_version="network.openshift.io/v1", kind="NetNamespace")
    assert (
        wait_for(
            lambda: [
                net_namespace.netid
                for net_namespace in net_namespaces.get().items
                if net_namespace.metadata.name == project
            ],
            "a NetNamespace",
        )[0]
        >= 10
    )
    events = maps.watch(namespace=project, field_selector="metadata.name=applied", timeout=5)
    assert next(events)["object"].data.a == "2"
    maps.delete(name="applied", namespace=project)
    assert resources.resources.get(api_version="apps/v1", kind="Deployment").subresources["scale"]


@pytest.mark.parametrize("lock", [LeaseLock, ConfigMapLock])
def test_python_client_leader_election_elects_one_of_two(api: client.ApiClient, project: str, lock: Any) -> None:
    def candidate(name: str) -> LeaderElection:
        own = lock("leader", project, name)
        own.api_instance = type(own.api_instance)(api)
        return LeaderElection(electionconfig.Config(own, 17, 15, 5, print, print))

    first, second = candidate("first"), candidate("second")
    assert first.try_acquire_or_renew()
    assert not second.try_acquire_or_renew()
    assert first.try_acquire_or_renew()
    assert second.election_config.lock.get("leader", project)[1].holder_identity == "first"
