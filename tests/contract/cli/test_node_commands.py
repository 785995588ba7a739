"""`podlane node drain` and `podlane node remove` against a real master."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from api.client.bootstrap import node_kubeconfig
from api.client.client import ApiError, Client
from api.client.discovery import ClusterInfo
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from cli.__main__ import main
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.wait import wait_until

PODS = "/api/v1/namespaces/default/pods"
READY = {"type": "Ready", "status": "True"}
BUDGET = """\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: kept, namespace: default}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: kept}}}
"""

Podlane = Callable[..., tuple[int, str, str]]


@pytest.fixture
def podlane(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Podlane:
    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, f"--kubeconfig={server.kubeconfig}"])
        return (code, *capsys.readouterr())

    return run


def identity(server: ApiServer, name: str, folder: Path) -> Kubeconfig:
    """Return the identity of a node, which has registered with it and is Ready."""

    async def create() -> str:
        administrator = Kubeconfig.load(server.kubeconfig)
        async with Client(administrator) as client:
            return await node_kubeconfig(client, administrator, name)

    async def register(kubeconfig: Kubeconfig) -> None:
        async with Client(kubeconfig) as client:
            await client.create(Node(metadata=ObjectMeta(name=name)))
            await client.patch_status(Node, name, "", {"status": {"conditions": [READY]}})

    file = folder / f"{name}.kubeconfig"
    file.write_text(asyncio.run(create()))
    kubeconfig = Kubeconfig.load(file)
    asyncio.run(register(kubeconfig))
    return kubeconfig


def answer(kubeconfig: Kubeconfig, name: str) -> int:
    """Return the status with which the master answers a node that reads its Node."""

    async def read() -> int:
        async with Client(kubeconfig) as client:
            try:
                await client.get(Node, name)
            except ApiError as error:
                return error.status.code
            return 200

    return asyncio.run(read())


def create_pod(
    server: ApiServer, name: str, node: str, *, owner: str = "", has_data: bool = False, app: str = "x"
) -> None:
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "1", "controller": True}] if owner else []
    volumes = [{"name": "data", "emptyDir": {}}] if has_data else []
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i"}],
        "volumes": volumes,
        "automountServiceAccountToken": False,
    }
    metadata = {"name": name, "namespace": "default", "labels": {"app": app}, "annotations": {}}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": owners}, "spec": spec}
    SyncClient(server.kubeconfig).apply(yaml.safe_dump(document))


def pods(server: ApiServer, node: str) -> list[str]:
    listed = SyncClient(server.kubeconfig).get(f"{PODS}?fieldSelector=spec.nodeName={node}")["items"]
    return sorted(pod["metadata"]["name"] for pod in listed)


def test_drain_refuses_what_would_be_lost_and_evicts_the_rest(
    server: ApiServer, podlane: Podlane, tmp_path: Path
) -> None:
    identity(server, "full", tmp_path)
    create_pod(server, "bare", "full")
    create_pod(server, "data", "full", has_data=True)
    code, _, error = podlane("node", "drain", "full")
    assert code == 1
    assert error.splitlines() == [
        "podlane: no pod of full was evicted; kubectl uncordon full lets new pods onto it",
        "  default/bare, default/data have no controller that creates them again; --force is accepted",
        "  default/data have data in emptyDir volumes; --delete-emptydir-data is accepted",
    ]
    assert pods(server, "full") == ["bare", "data"]
    assert SyncClient(server.kubeconfig).get("/api/v1/nodes/full")["spec"]["unschedulable"]
    code, output, _ = podlane("node", "drain", "full", "--force", "--delete-emptydir-data")
    assert code == 0
    assert output.splitlines()[-1] == "node full is drained"
    assert pods(server, "full") == []
    assert podlane("node", "drain", "nope")[0] == 1


def test_drain_waits_for_a_budget_no_longer_than_its_timeout(
    server: ApiServer, podlane: Podlane, tmp_path: Path
) -> None:
    client = SyncClient(server.kubeconfig)
    identity(server, "budget", tmp_path)
    client.apply(BUDGET)
    create_pod(server, "kept", "budget", app="kept")
    status = {"phase": "Running", "conditions": [READY, {"type": "ContainersReady", "status": "True"}]}

    async def run_pod() -> None:
        async with Client(Kubeconfig.load(server.kubeconfig)) as administrator:
            await administrator.patch_status(Pod, "kept", "default", {"status": status})

    asyncio.run(run_pod())
    code, _, error = podlane("node", "drain", "budget", "--force", "--timeout=1")
    assert code == 1
    assert "1 of 1 pods of budget were not evicted" in error
    assert "pod default/kept: not evicted in time" in error
    assert pods(server, "budget") == ["kept"]


def test_removed_node_is_refused_until_it_joins_again(server: ApiServer, podlane: Podlane, tmp_path: Path) -> None:
    old = identity(server, "gone", tmp_path)
    other = identity(server, "stays", tmp_path)
    create_pod(server, "runs", "gone")
    code, _, error = podlane("node", "remove", "gone")
    assert code == 1
    assert "node gone is Ready and has 1 pods: default/runs. Nothing was changed" in error
    assert answer(old, "gone") == 200
    assert podlane("node", "remove", "gone", "--force")[0] == 0
    assert SyncClient(server.kubeconfig).get("/api/v1/nodes/gone") == {}
    assert answer(old, "gone") == 401
    assert answer(other, "stays") == 200
    assert podlane("node", "remove", "gone")[0] == 1
    wait_until(lambda: rejoined(server, tmp_path), "a new certificate is accepted")


def rejoined(server: ApiServer, folder: Path) -> bool:
    """Return whether a new identity of the node is accepted. Times in certificates are whole seconds."""
    try:
        return answer(identity(server, "gone", folder), "gone") == 200
    except ApiError:
        return False


def test_certificates_signed_during_a_removal_are_refused(
    server: ApiServer, podlane: Podlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the node may be signed until they are deleted, so what counts is the time after that."""
    identity(server, "during", tmp_path)
    deletion = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)
    times = iter((deletion - datetime.timedelta(days=1), deletion + datetime.timedelta(days=1)))

    async def fetched(kubeconfig: Kubeconfig) -> ClusterInfo:
        return ClusterInfo(kubeconfig.ca, (), next(times))

    monkeypatch.setattr("cli.node.command.fetch_verified", fetched)
    assert podlane("node", "remove", "during")[0] == 0
    path = "/api/v1/namespaces/kube-system/configmaps/podlane-removed-nodes"
    assert SyncClient(server.kubeconfig).get(path)["data"]["during"] == "2090-01-02T00:00:00Z"
