"""Local volumes with a real master and the controller of a node agent: their life, restarts, rights and quotas."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from api.client.bootstrap import node_kubeconfig
from api.client.client import ApiError, Client, ClientError, Forbidden, Invalid
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from api.core.storage import (
    LOCAL_VOLUMES_LABEL,
    PRESENT,
    SELECTED_NODE,
    LocalVolume,
    LocalVolumeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
)
from api.meta.types import ObjectMeta
from node_agent.volumes import mounts
from node_agent.volumes.local_directories import LocalDirectories, mount_local
from node_agent.volumes.local_volumes import LocalVolumeController
from node_agent.volumes.paths import LOCAL_PLUGIN
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session
from tests.testbed.wait import DEADLINE_SECONDS

RED = "/api/v1/namespaces/red"
CLAIMS, PODS = f"{RED}/persistentvolumeclaims", f"{RED}/pods"


async def until(holds: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Call `holds` until its result is true, and return the result."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (result := await holds()):
                await asyncio.sleep(0.02)
            return result
    except TimeoutError:
        raise AssertionError(what) from None


class World:
    """The project red, and the node `mine` with directories of its own. `other` is the client of another node."""

    def __init__(self, admin: UntypedClient, mine: Client, other: Client, root: Path) -> None:
        self.admin = admin
        self.mine = mine
        self.other = other
        self.root = root
        self.pods_dir = root / "pods"
        self.local = root / "local"

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """Run the controller of the node agent."""
        directories = LocalDirectories(self.local, self.pods_dir, creates_root=True)
        task = asyncio.create_task(LocalVolumeController(self.mine, "mine", directories).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def claim(self, name: str, size: str = "1Gi", **spec: Any) -> Any:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
        return await self.admin.request("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})

    async def pod(self, name: str, claim: str) -> None:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
        await self.admin.create(PODS, name=name, spec={"containers": [{"name": "c", "image": "i"}], "volumes": volumes})

    async def get(self, path: str) -> Any:
        """Return an object, None if it does not exist."""
        answer = await self.admin.request("GET", path)
        return None if answer.get("code") == 404 else answer

    async def until_phase(self, path: str, phase: str) -> Any:
        async def has_phase() -> Any:
            found = await self.get(path)
            return found if found is not None and found["status"].get("phase") == phase else None

        return await until(has_phase, f"{path} is {phase}: {await self.get(path)}")

    async def until_gone(self, path: str) -> None:
        async def is_gone() -> bool:
            return await self.get(path) is None

        await until(is_gone, f"{path} is gone: {await self.get(path)}")

    async def bound(self, name: str) -> str:
        """Create a claim and its pod. Return the name of the volume."""
        await self.claim(name)
        await self.pod(name, name)
        return str((await self.until_phase(f"{CLAIMS}/{name}", "Bound"))["spec"]["volumeName"])

    async def until_kept(self, name: str) -> LocalVolume:
        """Wait until the master has asked for the directory to be kept, and return the LocalVolume."""

        async def is_kept() -> LocalVolume | None:
            volume = await self.mine.get(LocalVolume, name)
            return volume if volume.spec.state == PRESENT else None

        return cast("LocalVolume", await until(is_kept, f"the directory of {name} is kept"))

    async def end_pod(self, name: str) -> None:
        await self.admin.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        await self.until_gone(f"{PODS}/{name}")

    async def reasons(self, name: str) -> set[str]:
        events = (await self.admin.request("GET", f"{RED}/events"))["items"]
        return {event["reason"] for event in events if event["involvedObject"]["name"] == name}


@pytest.fixture
async def world(server: ApiServer, tmp_path: Path) -> AsyncIterator[World]:
    administrator = Kubeconfig.load(server.kubeconfig)
    async with Client(administrator) as master:
        configs = {}
        for name in ("mine", "other"):
            path = tmp_path / name
            path.write_text(await node_kubeconfig(master, administrator, name))
            configs[name] = Kubeconfig.load(path)
        (tmp_path / "pods").mkdir()
        async with Client(configs["mine"]) as mine, Client(configs["other"]) as other:
            admin = UntypedClient(master)
            for client, name in ((mine, "mine"), (other, "other")):
                labels = {"kubernetes.io/hostname": name, LOCAL_VOLUMES_LABEL: "true" if name == "mine" else "false"}
                await client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
                status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "100"}}
                await client.patch_status_strategically(Node, name, "", {"status": status})
            if "code" in await admin.request("GET", RED):
                await admin.create("/api/v1/namespaces", name="red")
            await admin.wait_until(
                f"{RED}/serviceaccounts/default", lambda found: found.get("kind") == "ServiceAccount"
            )
            yield World(admin, mine, other, tmp_path)
            mounts.unmount_all(tmp_path)
            for name in ("mine", "other"):
                await master.delete(Node, name)


async def test_claim_without_a_class_gets_a_directory_and_loses_it_with_its_claim(world: World) -> None:
    created = await world.claim("data")
    assert created["spec"]["storageClassName"] == "local"
    name = f"pvc-{created['metadata']['uid']}"

    async def waits() -> bool:
        return "WaitForFirstConsumer" in await world.reasons("data")

    await until(waits, "the claim says what it waits for")
    assert await world.get(f"/apis/podlane.io/v1/localvolumes/{name}") is None
    async with world.agent():
        await world.pod("user", "data")
        claim = await world.until_phase(f"{CLAIMS}/data", "Bound")
        assert (claim["spec"]["volumeName"], claim["status"]["capacity"]) == (name, {"storage": "1Gi"})
        volume = await world.until_phase(f"/api/v1/persistentvolumes/{name}", "Bound")
        assert volume["spec"]["local"] == {"path": str(world.local / name)}

        async def place() -> Any:
            return (await world.get(f"{PODS}/user"))["spec"].get("nodeName")

        node = await until(place, "the pod is bound")
        assert node == claim["metadata"]["annotations"][SELECTED_NODE] == "mine"
        assert (world.local / name).is_dir()
        await world.admin.request("DELETE", f"{CLAIMS}/data")
        assert (await world.get(f"{CLAIMS}/data"))["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        await world.end_pod("user")
        await world.until_gone(f"/api/v1/persistentvolumes/{name}")
        await world.until_gone(f"/apis/podlane.io/v1/localvolumes/{name}")
    assert list(world.local.iterdir()) == []


async def test_mounted_directory_is_kept_although_the_master_knows_no_pod(world: World) -> None:
    """A pod that was deleted by force may run on its node for a while."""
    async with world.agent():
        name = await world.bound("forced")
        target = world.pods_dir / "uid" / "volumes" / LOCAL_PLUGIN / "v"
        (world.local / name / "file").write_text("in use")
        mount_local(world.local / name, target, None, only_if_root_differs=False)
        await world.end_pod("forced")
        await world.admin.request("DELETE", f"{CLAIMS}/forced")
        failed = await world.until_phase(f"/api/v1/persistentvolumes/{name}", "Failed")
        assert failed["status"]["reason"] == "VolumeFailedDelete"
        assert "is mounted for a pod" in failed["status"]["message"]
        assert (target / "file").read_text() == "in use"
        mounts.unmount_all(world.pods_dir)
        await world.until_gone(f"/api/v1/persistentvolumes/{name}")
    assert not (world.local / name).exists()


async def test_restarts_of_master_and_agent_lose_and_leak_nothing(world: World, server: ApiServer) -> None:
    await world.claim("restarted")
    await world.pod("restarted", "restarted")

    async def is_selected() -> bool:
        return SELECTED_NODE in (await world.get(f"{CLAIMS}/restarted"))["metadata"].get("annotations", {})

    await until(is_selected, "a node is selected")
    server.stop(signal.SIGKILL)
    server.start()
    name = f"pvc-{(await world.get(f'{CLAIMS}/restarted'))['metadata']['uid']}"
    async with world.agent():
        await world.until_phase(f"{CLAIMS}/restarted", "Bound")
    (world.local / name / "file").write_text("data")
    server.stop(signal.SIGKILL)
    server.start()
    await world.end_pod("restarted")
    await world.admin.request("DELETE", f"{CLAIMS}/restarted")
    path = f"/apis/podlane.io/v1/localvolumes/{name}"

    async def is_released() -> bool:
        return bool((await world.get(path))["spec"]["state"] == "Absent")

    await until(is_released, "the directory is to be deleted")
    assert (world.local / name / "file").read_text() == "data", "nobody but the agent deletes it"
    # An agent that was killed in the middle of a deletion has left this.
    trash = world.local / f".deleting-{name}"
    trash.mkdir()
    (world.local / name).rename(trash / "1")
    async with world.agent():
        await world.until_gone(f"/api/v1/persistentvolumes/{name}")
    assert list(world.local.iterdir()) == []


async def test_missing_directory_of_a_volume_is_not_created_again(world: World) -> None:
    async with world.agent():
        name = await world.bound("missing")
    (world.local / name).rmdir()
    async with world.agent():
        await world.bound("positive")
        assert not (world.local / name).exists(), "its data would seem to be lost"


async def refused(request: Awaitable[Any]) -> bool:
    try:
        await request
    except Forbidden:
        return True
    except ClientError as error:
        raise AssertionError(f"not forbidden, but {error}") from None
    return False


async def test_node_may_only_report_its_own_local_volumes(world: World) -> None:
    async with world.agent():
        name = await world.bound("rights")
    # The master writes once more after the claim is bound: the directory is one to keep.
    own = await world.until_kept(name)
    assert [
        each.metadata.name for each in (await world.mine.list(LocalVolume, field_selector="spec.nodeName=mine")).items
    ]
    assert await refused(world.other.get(LocalVolume, name))
    assert await refused(world.other.list(LocalVolume))
    assert await refused(world.other.list(LocalVolume, field_selector="spec.nodeName=mine"))
    assert (await world.other.list(LocalVolume, field_selector="spec.nodeName=other")).items == ()
    assert await refused(world.other.update_status(replace(own, status=LocalVolumeStatus(phase="Deleted"))))
    for client in (world.mine, world.other):
        for change in (
            client.update(replace(own, spec=replace(own.spec, state="Absent"))),
            client.patch(LocalVolume, name, "", {"spec": {"nodeName": "other"}}),
            client.delete(LocalVolume, name),
            client.create(LocalVolume(metadata=ObjectMeta(name="pvc-x"), spec=own.spec)),
        ):
            with pytest.raises(ApiError) as error:
                await change
            assert error.value.status.code in (403, 405)
    # What a node reports changes its status and nothing else.
    reported = await world.mine.update_status(
        replace(own, spec=replace(own.spec, state="Absent"), status=replace(own.status, message="slow disk"))
    )
    assert (reported.status.message, reported.spec) == ("slow disk", own.spec)
    with pytest.raises(Invalid, match=r"status\.message"):
        await world.mine.update_status(replace(reported, status=replace(own.status, message="x" * 1025)))
    with pytest.raises(Invalid, match=r"status\.path"):
        await world.mine.update_status(replace(reported, status=replace(own.status, path="../etc")))


async def test_node_may_neither_write_volumes_nor_claims(world: World) -> None:
    async with world.agent():
        name = await world.bound("claims")
    volume = await world.mine.get(PersistentVolume, name)  # Its pod refers to it.
    claim = await world.mine.get(PersistentVolumeClaim, "claims", "red")
    assert await refused(world.other.get(PersistentVolume, name))
    selected = {"metadata": {"annotations": {SELECTED_NODE: "other"}}}
    for client in (world.mine, world.other):
        assert await refused(client.patch(PersistentVolume, name, "", {"spec": {"claimRef": None}}))
        assert await refused(client.update_status(replace(volume, status=replace(volume.status, phase="Available"))))
        assert await refused(client.create(replace(volume, metadata=ObjectMeta(name="own"))))
        assert await refused(client.delete(PersistentVolume, name))
        assert await refused(client.patch(PersistentVolumeClaim, "claims", "red", selected))
        assert await refused(client.update_status(replace(claim, status=replace(claim.status, phase="Lost"))))


async def test_node_cannot_take_the_host_name_of_another_node(world: World) -> None:
    """Local volumes select a host name: with that of `mine`, `other` would get the pods that use its volumes."""
    label = {"metadata": {"labels": {"kubernetes.io/hostname": "mine"}}}
    with pytest.raises(Forbidden, match="is not allowed to take the host name of node mine"):
        await world.other.patch(Node, "other", "", label)
    free = {"metadata": {"labels": {"kubernetes.io/hostname": "free"}}}
    assert (await world.other.patch(Node, "other", "", free)).metadata.labels["kubernetes.io/hostname"] == "free"


async def test_editor_of_a_project_creates_claims_but_neither_volumes_nor_classes(
    world: World, server: ApiServer, tmp_path: Path
) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings"
    subject = {"kind": "User", "name": "ed", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
    await world.admin.create(rbac, name="ed", roleRef=role, subjects=[subject])
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/etc"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["mine"]}]}]}},
    }  # fmt: skip
    attempts = (
        (CLAIMS, {"metadata": {"name": "eds"}, "spec": claim}, 201),
        ("/api/v1/persistentvolumes", {"metadata": {"name": "eds"}, "spec": volume}, 403),
        ("/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": "eds"}, "provisioner": "a/b"}, 403),
        ("/apis/podlane.io/v1/localvolumes", {"metadata": {"name": "eds"}}, 403),
    )
    async with user_session(server, tmp_path, "ed", "system:authenticated") as session:
        for path, document, code in attempts:
            async with session.post(path, json=document) as answer:
                assert (path, answer.status) == (path, code), await answer.text()
    accepted = await world.admin.request(
        "POST", "/api/v1/persistentvolumes", {"metadata": {"name": "adm"}, "spec": volume}
    )
    assert accepted["kind"] == "PersistentVolume", "an administrator may"


async def test_quota_counts_claims_of_the_default_class(world: World) -> None:
    await world.admin.create("/api/v1/namespaces", name="small")
    by_class = "local.storageclass.storage.k8s.io"
    number, storage = f"{by_class}/persistentvolumeclaims", f"{by_class}/requests.storage"
    hard = {"persistentvolumeclaims": "3", number: "2", storage: "3Gi"}
    at = "/api/v1/namespaces/small"
    await world.admin.create(f"{at}/resourcequotas", name="q", spec={"hard": hard})
    await world.admin.wait_until(f"{at}/resourcequotas/q", lambda quota: "used" in quota["status"])

    async def claim(name: str, size: str, **more: Any) -> str:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **more}
        answer = await world.admin.request(
            "POST", f"{at}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": spec}
        )
        return str(answer.get("message", ""))

    assert await claim("a", "2Gi") == ""
    assert f"requested: {by_class}/requests.storage=2Gi, used: {by_class}/requests.storage=2Gi" in await claim(
        "b", "2Gi"
    )
    assert await claim("b", "1Gi") == ""
    assert f"requested: {number}=1" in await claim("c", "1Mi")
    assert await claim("c", "9Gi", storageClassName="") == "", "a claim of no class does not count for the class"
    assert "requested: persistentvolumeclaims=1" in await claim("d", "9Gi", storageClassName="")


def test_classes_depend_on_the_setting(tmp_path: Path) -> None:
    async def names(config: Path) -> list[str]:
        async with Client(Kubeconfig.load(config)) as client:
            answer = await UntypedClient(client).request("GET", "/apis/storage.k8s.io/v1/storageclasses")
            return [each["metadata"]["name"] for each in answer["items"]]

    for flags, expected in (((), ["local"]), (("--local-storage-class=false",), [])):
        root = tmp_path / str(len(flags))
        root.mkdir()
        master = ApiServer(root, *flags)
        master.start()
        try:
            assert asyncio.run(names(master.kubeconfig)) == expected
        finally:
            master.stop()
