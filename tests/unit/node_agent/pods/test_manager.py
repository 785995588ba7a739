"""Static pods from manifest to mirror pod, with the complete agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from api.client.client import Client, ClientError, Forbidden, Invalid
from api.client.kubeconfig import Kubeconfig
from api.core.events import Event
from api.core.node import Namespace, Node
from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_HASH, CONFIG_MIRROR, mirror_pod
from node_agent.runtime.termination import grace_period_seconds
from tests.unit.node_agent.one_node import TEXT, OneNode, one_node, until_true


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[OneNode]:
    async with one_node(tmp_path) as node:
        yield node


def images(pod: Pod) -> list[str]:
    return [container.image for container in pod.spec.containers]


def runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.status.pod_ip == "10.128.0.2"


async def test_static_pod_mirror_shows_status_and_is_deleted_with_its_file(node: OneNode) -> None:
    node.write("web")
    async with node.agent():
        pod = await node.until_shown("web-node-1", runs)
        [uid] = node.sandboxes()
        assert pod.metadata.annotations[CONFIG_MIRROR] == pod.metadata.annotations[CONFIG_HASH] == uid
        [owner] = pod.metadata.owner_references
        registered = await node.admin.get(Node, "node-1")
        assert (owner.kind, owner.name, owner.uid) == ("Node", "node-1", registered.metadata.uid)
        (node.manifests / "web.yaml").unlink()
        await node.until_gone("web-node-1")
        await until_true(lambda: not node.docker.held)


@pytest.mark.parametrize("grace", [None, 0])
async def test_mirror_pod_deleted_by_a_user_is_recreated_while_the_pod_runs(node: OneNode, grace: int | None) -> None:
    node.write("web")
    async with node.agent():
        before = await node.until_shown("web-node-1", runs)
        started = list(node.docker.started)
        await node.admin.delete(Pod, "web-node-1", "default", grace_seconds=grace)
        after = await node.until_shown("web-node-1", lambda pod: runs(pod) and pod.metadata.uid != before.metadata.uid)
        assert not after.metadata.deletion_timestamp
        assert node.docker.started == started
        assert not node.docker.signals


async def test_changed_manifest_starts_a_new_pod_after_the_old_ended(node: OneNode) -> None:
    node.write("web", TEXT.replace("GracePeriodSeconds: 0", "GracePeriodSeconds: 600"))
    async with node.agent():
        await node.until_shown("web-node-1", runs)
        [before] = node.sandboxes()
        node.write("web", TEXT.replace("toolbox", "toolbox:2"))
        await until_true(lambda: ("main", "SIGTERM") in node.docker.signals)
        assert list(node.sandboxes()) == [before], "the first is not gone yet"
        container = node.docker.running("main")
        assert container is not None
        node.docker.end(container.id, 0)
        mirror = await node.until_shown(
            "web-node-1", lambda pod: runs(pod) and pod.metadata.annotations[CONFIG_MIRROR] != before
        )
        assert list(node.sandboxes()) == [mirror.metadata.annotations[CONFIG_MIRROR]]
        assert mirror.spec.containers[0].image == "toolbox:2"


async def test_agent_restart_changes_nothing(node: OneNode) -> None:
    node.write("web")
    async with node.agent():
        before = await node.until_shown("web-node-1", runs)
        started = list(node.docker.started)
    async with node.agent() as agent:
        await until_true(lambda: agent.config.seen_all_sources())
        node.write("db")
        await node.until_shown("db-node-1", runs)
        after = await node.until_shown("web-node-1", runs)
        assert after.metadata.uid == before.metadata.uid
        assert after.status == before.status, "with the times at which all that has happened"
        assert node.docker.started[: len(started)] == started
        assert list(node.sandboxes().values()).count("web-node-1") == 1


async def test_changes_made_while_the_agent_was_down_are_applied(node: OneNode) -> None:
    node.write("web")
    node.write("old")
    async with node.agent():
        await node.until_shown("web-node-1", runs)
        await node.until_shown("old-node-1", runs)
    (node.manifests / "old.yaml").unlink()
    node.write("web", TEXT.replace("toolbox", "toolbox:2"))
    async with node.agent():
        await node.until_gone("old-node-1")
        mirror = await node.until_shown(
            "web-node-1", lambda pod: runs(pod) and pod.spec.containers[0].image == "toolbox:2"
        )
        assert node.sandboxes() == {mirror.metadata.annotations[CONFIG_MIRROR]: "web-node-1"}


async def test_static_pod_removed_while_the_agent_was_down_has_its_full_grace_period(node: OneNode) -> None:
    node.write("web", TEXT.replace("GracePeriodSeconds: 0", "GracePeriodSeconds: 600"))
    async with node.agent():
        await node.until_shown("web-node-1", runs)
    (node.manifests / "web.yaml").unlink()
    async with node.agent() as agent:
        await until_true(lambda: ("main", "SIGTERM") in node.docker.signals)
        [orphan] = agent.pods.list_pods()
        assert grace_period_seconds(orphan.pod, None, removed=True) == 600
        await node.until_gone("web-node-1")
        assert ("main", "SIGKILL") not in node.docker.signals
        container = node.docker.running("main")
        assert container is not None
        node.docker.end(container.id, 0)
        await until_true(lambda: not node.docker.held)


async def test_pods_that_arrive_during_the_first_sync_are_not_cleaned_up(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sync knows static pods only. Before it ends, the API server has listed the other pod."""
    node.write("web")
    await node.admin.create(
        Pod(
            metadata=ObjectMeta(name="guest", namespace="default"),
            spec=PodSpec(containers=(Container(name="main", image="toolbox"),), node_name="node-1"),
        )
    )
    async with node.agent():
        await node.until_shown("web-node-1", runs)
        await node.until_shown("guest", runs)
    async with node.agent() as agent:
        pods = node.docker.list_pods

        async def after_the_master() -> dict[str, dict[str, str]]:
            requests.append(True)
            await until_true(lambda: bool(agent.api_server.synced and agent.api_server.informer.items))
            return await pods()

        requests: list[bool] = []
        monkeypatch.setattr(node.docker, "list_pods", after_the_master)
        await until_true(lambda: bool(requests))
        node.write("late")
        await node.until_shown("late-node-1", runs)
        assert sorted(node.sandboxes().values()) == ["guest", "late-node-1", "web-node-1"]
        assert not node.docker.signals


async def test_nothing_is_cleaned_up_before_every_source_has_synced(node: OneNode) -> None:
    node.write("web")
    async with node.agent():
        await node.until_shown("web-node-1", runs)
    (node.manifests / "web.yaml").unlink()
    node.settings = replace(node.settings, manifest_url="http://127.0.0.1:1/never")
    async with node.agent() as agent:
        await until_true(lambda: agent.api_server.synced)
        node.write("db")
        await node.until_shown("db-node-1", runs)
        assert "web-node-1" in node.sandboxes().values()
        assert await node.pod("web-node-1")
    node.settings = replace(node.settings, manifest_url="")
    async with node.agent():
        await node.until_gone("web-node-1")
        await until_true(lambda: list(node.sandboxes().values()) == ["db-node-1"])


async def test_submitted_pod_is_mirrored_and_deleted(node: OneNode) -> None:
    async with (
        node.agent(),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(node.settings.socket)) as http,
    ):
        await until_true(Path(node.settings.socket).exists)
        async with http.post("http://node/pods", data=TEXT.replace("NAME", "web")) as answer:
            assert answer.status == 201
        await node.until_shown("web-node-1", runs)
        async with http.delete("http://node/pods/default/web") as answer:
            assert answer.status == 200
        await node.until_gone("web-node-1")


async def test_static_pod_takes_precedence_over_an_equally_named_api_pod(node: OneNode) -> None:
    spec = PodSpec(node_name="node-1", containers=(Container(name="main", image="toolbox"),))
    pod = await node.admin.create(Pod(metadata=ObjectMeta(name="web-node-1", namespace="default"), spec=spec))
    node.write("web")
    node.write("db")
    async with node.agent():
        await node.until_shown("db-node-1", runs)
        await until_true(lambda: "web-node-1" in node.sandboxes().values())
        assert pod.metadata.uid not in node.sandboxes()
        remaining = await node.pod("web-node-1")
        assert remaining is not None
        assert (remaining.metadata.uid, remaining.status.phase) == (pod.metadata.uid, "Pending")


async def test_static_pod_of_a_missing_namespace_runs_and_is_mirrored_later(node: OneNode) -> None:
    node.write("web", TEXT.replace("namespace: default", "namespace: blue"))
    async with node.agent() as agent:
        await until_true(node.sandboxes)
        await node.admin.create(Namespace(metadata=ObjectMeta(name="blue")))
        agent.mirror_pods.loop.wake()

        async def is_mirrored() -> bool:
            api_pods = await node.admin.list(Pod, "blue")
            return [(pod.metadata.name, pod.status.phase) for pod in api_pods.items] == [("web-node-1", "Running")]

        await until_true(is_mirrored)


async def test_api_pod_with_static_annotations_is_not_treated_as_static(node: OneNode) -> None:
    """Any client may write these annotations."""
    async with node.agent():
        annotations = {"kubernetes.io/config.source": "file", CONFIG_HASH: "x"}
        spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "toolbox"}]}
        body = {"metadata": {"name": "web", "annotations": annotations}, "spec": spec}
        await node.admin.request("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(body))
        pod = await node.until_shown("web", runs)
        assert list(node.sandboxes()) == [pod.metadata.uid]


async def test_node_may_create_only_mirrors_of_its_own_pods(node: OneNode) -> None:
    node.write("web")
    async with node.agent() as agent:
        await node.until_shown("web-node-1", runs)
        [static] = agent.config.pods().values()
    registered = await node.admin.get(Node, "node-1")
    good = mirror_pod(replace(static, metadata=replace(static.metadata, name="other")), registered)
    meta, [owner] = good.metadata, good.metadata.owner_references
    unmarked = {key: value for key, value in meta.annotations.items() if key != CONFIG_MIRROR}
    bad = [
        replace(good, spec=replace(good.spec, node_name="node-2")),
        replace(good, spec=replace(good.spec, service_account_name="default")),
        replace(good, metadata=replace(meta, owner_references=())),
        replace(good, metadata=replace(meta, owner_references=(replace(owner, uid="x"),))),
        replace(good, metadata=replace(meta, owner_references=(owner, owner))),
        replace(good, metadata=replace(meta, annotations=unmarked)),
    ]
    async with Client(Kubeconfig.load(node.settings.kubeconfig)) as client:
        for pod in bad:
            with pytest.raises(Forbidden):
                await client.create(pod)
        with pytest.raises(Invalid, match=r"spec\.nodeName: Required value"):
            await client.create(replace(good, spec=replace(good.spec, node_name="")))
        await client.create(good)
        await node.admin.delete(Node, "node-1")
        with pytest.raises(Forbidden, match="has not registered"):
            await client.create(replace(good, metadata=replace(meta, name="third")))


def cpu_request_pod(text: str) -> str:
    return TEXT.replace("image: toolbox", f"image: toolbox, resources: {{requests: {{{text}}}}}")


async def bound(node: OneNode, name: str, **spec: object) -> None:
    """Return a pod that a client has bound to the node."""
    container = {"name": "main", "image": "toolbox", **spec.pop("container", {})}  # type: ignore[dict-item]
    body = {
        "metadata": {"name": name},
        "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }
    await node.admin.request("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(body))


async def test_rejected_pod_fails_with_a_reason_and_is_not_retried(node: OneNode) -> None:
    async with node.agent():
        await bound(node, "picky", nodeSelector={"disk": "ssd"})
        await bound(node, "huge", container={"resources": {"requests": {"cpu": "4000"}}})
        picky = await node.until_shown("picky", lambda pod: pod.status.phase == "Failed")
        assert (picky.status.reason, picky.status.message) == (
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        )
        huge = await node.until_shown("huge", lambda pod: pod.status.phase == "Failed")
        assert huge.status.reason == "OutOfcpu"
        await node.admin.patch(Node, "node-1", "", {"metadata": {"labels": {"disk": "ssd"}}})
        await bound(node, "late", nodeSelector={"disk": "ssd"})
        await node.until_shown("late", runs)
    async with node.agent():
        await bound(node, "last")
        await node.until_shown("last", runs)
        assert sorted(node.sandboxes().values()) == ["last", "late"]
        await node.admin.delete(Pod, "picky", "default")
        await node.until_gone("picky")


async def test_rejected_static_pod_stays_rejected_after_agent_restart(node: OneNode) -> None:
    node.write("picky", TEXT.replace("spec:", "spec:\n  nodeSelector: {disk: ssd}"))
    async with node.agent():
        await node.until_shown("picky-node-1", lambda pod: pod.status.reason == "NodeAffinity")
        await node.admin.patch(Node, "node-1", "", {"metadata": {"labels": {"disk": "ssd"}}})
    async with node.agent():
        node.write("other", TEXT.replace("spec:", "spec:\n  nodeSelector: {disk: ssd}"))
        await node.until_shown("other-node-1", runs)
        picky = await node.until_shown("picky-node-1")
        assert (picky.status.phase, picky.status.reason) == ("Failed", "NodeAffinity")
        # The event is written beside the status, and may come later.
        await until_true(lambda: node.event_counts("NodeAffinity"))
        assert await node.event_counts("NodeAffinity") == [1]
        node.write("picky", TEXT)
        await node.until_shown("picky-node-1", runs)


async def test_invalid_manifest_is_reported_as_a_node_event(node: OneNode) -> None:
    node.write("bad", TEXT.replace("image", "imagine"))
    node.write("first")
    node.write("first", file="second.yaml")

    async def errors_recorded() -> bool:
        events = [event for event in (await node.admin.list(Event)).items if event.reason == "FailedValidation"]
        api_pods = {event.involved_object.kind: event.message for event in events}
        return "spec.containers[0].imagine: is not a field" in api_pods.get(
            "Node", ""
        ) and "second.yaml: " in api_pods.get("Pod", "")

    async with node.agent():
        await until_true(errors_recorded)


async def test_admitted_pod_is_not_admitted_again(node: OneNode) -> None:
    async with node.agent():
        await until_true(lambda: node.node_is_known())
        await node.admin.patch(Node, "node-1", "", {"metadata": {"labels": {"disk": "ssd"}}})
        await bound(node, "picky", nodeSelector={"disk": "ssd"})
        await node.until_shown("picky", runs)
    await node.admin.patch(Node, "node-1", "", {"metadata": {"labels": {"disk": None}}})
    started = list(node.docker.started)
    async with node.agent():
        await bound(node, "other")
        await node.until_shown("other", runs)
        await node.until_shown("picky", runs)
        assert node.docker.started[: len(started)] == started
        assert "picky" in node.sandboxes().values()


async def test_static_pod_preempts_other_pods(node: OneNode) -> None:
    async with node.agent() as agent:
        await until_true(lambda: node.node_is_known())
        cores = int((await node.admin.get(Node, "node-1")).status.allocatable["cpu"])
        await bound(node, "cheap", container={"resources": {"requests": {"cpu": f"{cores * 1000 - 100}m"}}})
        await bound(node, "free")
        await node.until_shown("cheap", runs)
        await node.until_shown("free", runs)
        node.write("web", cpu_request_pod(f"cpu: {cores * 1000 - 200}m"))
        await node.until_shown("web-node-1", runs)
        cheap = await node.until_shown("cheap", lambda pod: pod.status.phase == "Failed")
        assert (cheap.status.reason, cheap.status.message) == ("Preempting", "Preempted in order to admit critical pod")
        assert sorted(node.sandboxes().values()) == ["free", "web-node-1"]
        node.write("huge", cpu_request_pod("cpu: 4000"))
        huge = await node.until_shown("huge-node-1", lambda pod: pod.status.phase == "Failed")
        assert huge.status.reason == "OutOfcpu"
        assert sorted(node.sandboxes().values()) == ["free", "web-node-1"], "nobody ends for nothing"
        assert agent.api_server.synced


async def test_running_pods_are_admitted_before_new_ones_after_a_restart(node: OneNode) -> None:
    async with node.agent():
        await until_true(lambda: node.node_is_known())
        cores = int((await node.admin.get(Node, "node-1")).status.allocatable["cpu"])
        node.write("zebra", cpu_request_pod(f"cpu: {cores * 1000 - 100}m"))
        await node.until_shown("zebra-node-1", runs)
    node.write("ant", cpu_request_pod("cpu: 200m"))
    async with node.agent():
        ant = await node.until_shown("ant-node-1", lambda pod: pod.status.phase == "Failed")
        assert ant.status.reason == "OutOfcpu"
        assert list(node.sandboxes().values()) == ["zebra-node-1"]


async def test_mirror_pod_deleted_during_concurrent_writes_is_recreated(node: OneNode) -> None:
    node.write("web")
    async with node.agent():
        mirror = await node.until_shown("web-node-1", runs)
        for number in range(3):
            before = mirror.metadata.uid

            async def write(text: str = str(number)) -> None:
                with contextlib.suppress(ClientError):
                    for again in range(10):
                        body = {"status": {"nominatedNodeName": f"n-{text}-{again}"}}
                        await node.admin.patch_status(Pod, "web-node-1", "default", body)

            await asyncio.gather(node.admin.delete(Pod, "web-node-1", "default", grace_seconds=30), write(), write())
            mirror = await node.until_shown("web-node-1", lambda pod, old=before: runs(pod) and pod.metadata.uid != old)  # type: ignore[misc]
        assert len(node.docker.started) == 2
