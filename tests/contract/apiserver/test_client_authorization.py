"""Authorization of clients over HTTP: without certificate, with a foreign one, as a node and as administrator."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace as changed

from api.client.bootstrap import node_kubeconfig
from api.client.client import ApiError, Client, ClientError, Forbidden, NotFound, Unreachable
from api.client.kubeconfig import Kubeconfig
from api.core.config import ConfigMap, Secret
from api.core.node import Namespace, Node, NodeStatus
from api.core.pod import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from api.core.storage import PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec
from api.core.volumes import ConfigMapVolumeSource, HostPathVolumeSource, PersistentVolumeClaimVolumeSource, Volume
from api.meta.types import Condition, ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from master.auth import pki
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.tls_connector import tls_connector

SPEC = PodSpec(containers=(Container(name="main", image="toolbox"),))


@dataclass(frozen=True)
class Callers:
    """The administrator and two nodes, each with a pod of its own in `default`."""

    administrator: Client
    mine: Client
    other: Client


@pytest.fixture
async def callers(server: ApiServer, tmp_path: Path) -> AsyncIterator[Callers]:
    administrator = Kubeconfig.load(server.kubeconfig)
    async with Client(administrator) as master:
        configs = {}
        for name in ("mine", "other"):
            path = tmp_path / name
            path.write_text(await node_kubeconfig(master, administrator, name))
            configs[name] = Kubeconfig.load(path)
        async with Client(configs["mine"]) as mine, Client(configs["other"]) as other:
            for client, name in ((mine, "mine"), (other, "other")):
                await client.create(Node(metadata=ObjectMeta(name=name), status=NodeStatus()))
                pod = Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=changed(SPEC, node_name=name))
                await master.create(pod)
            yield Callers(master, mine, other)
        for name in ("mine", "other"):
            await master.delete(Pod, name, "default", grace_seconds=0)
            await master.delete(Node, name)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
async def test_health_endpoints_need_no_authentication(server: ApiServer, path: str) -> None:
    assert (await _anonymously(server, path))[0] == 200


async def test_health_endpoints_list_their_checks(server: ApiServer, callers: Callers) -> None:
    master = callers.administrator
    ready = "[+]ping ok\n[+]storage ok\n[+]controllers ok\nreadyz check passed\n"
    assert await _anonymously(server, "/readyz?verbose") == (200, ready)
    assert await _anonymously(server, "/livez?verbose") == (200, "[+]ping ok\nlivez check passed\n")
    assert await _anonymously(server, "/healthz?verbose=true") == (200, "[+]ping ok\nhealthz check passed\n")
    excluded = ready.replace("storage ok", "storage excluded: ok")
    assert await _anonymously(server, "/readyz?verbose&exclude=storage") == (200, excluded)
    assert (await _anonymously(server, "/readyz/storage"))[0] == 403
    for path in ("/readyz/storage", "/readyz/controllers", "/readyz/ping", "/livez/ping", "/healthz/ping"):
        assert await master.request("GET", path) == b"ok"
    listed = msgspec.json.decode(await master.request("GET", "/"))["paths"]
    assert {"/readyz/storage", "/livez/ping"} <= {*listed}
    for path in ("/readyz/mars", "/livez/storage", "/readyzz", "/healthz/ping/x"):
        with pytest.raises(NotFound):
            await master.request("GET", path)
    with pytest.raises(ApiError) as raised:
        await master.request("POST", "/readyz")
    assert raised.value.status.code == 405


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/api/v1/pods", "/api/v1/nodes/x", "/openapi/v2", "/metrics"])
async def test_anonymous_requests_are_rejected(server: ApiServer, path: str) -> None:
    status, text = await _anonymously(server, path)
    assert status in {401, 403}
    assert '"kind":"Status"' in text.replace(" ", "")


async def _anonymously(server: ApiServer, path: str) -> tuple[int, str]:
    config = Kubeconfig.load(server.kubeconfig)
    context = ssl.create_default_context(cadata=config.ca.decode())
    async with aiohttp.ClientSession() as http, http.get(config.server + path, ssl=context) as answer:
        return answer.status, await answer.text()


async def test_certificate_of_another_ca_is_rejected(server: ApiServer, tmp_path: Path) -> None:
    stranger = ApiServer(tmp_path)
    stranger.start()
    try:
        theirs, kubeconfig = Kubeconfig.load(stranger.kubeconfig), Kubeconfig.load(server.kubeconfig)
        async with Client(replace(theirs, server=kubeconfig.server, ca=kubeconfig.ca)) as client:
            with pytest.raises(ClientError):
                await client.list(Pod)
        async with Client(replace(kubeconfig, server=kubeconfig.server, ca=theirs.ca)) as client:
            with pytest.raises(Unreachable):
                await client.list(Pod)
    finally:
        stranger.stop()


async def test_certificate_that_a_user_has_issued_is_rejected(server: ApiServer, tmp_path: Path) -> None:
    """A certificate of a user is no authority, though the chain ends at that of the cluster."""
    directory, now = server.root / "state" / "pki", datetime.datetime.now(datetime.UTC)
    ca = authority_of(directory)
    user = pki.client_identity(ca, "ann", (), now)
    key = serialization.load_pem_private_key(user.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    false_authority = pki.Authority(key, x509.load_pem_x509_certificate(user.certificate))
    forged = pki.client_identity(false_authority, "root", ("system:masters",), now)
    config = Kubeconfig.load(server.kubeconfig)
    for name, pem, is_accepted in (
        ("own", user.key + user.certificate, True),
        ("forged", forged.key + forged.certificate + user.certificate, False),
    ):
        (tmp_path / name).write_bytes(pem)
        context = ssl.create_default_context(cadata=config.ca.decode())
        context.load_cert_chain(tmp_path / name)
        async with aiohttp.ClientSession(config.server, connector=tls_connector(context)) as session:
            if is_accepted:
                async with session.get("/apis/user.openshift.io/v1/users/~") as response:
                    assert (await response.json())["metadata"]["name"] == "ann"
            else:
                with pytest.raises(aiohttp.ClientError):
                    await session.get("/version")


def authority_of(directory: Path) -> pki.Authority:
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pki.Authority(key, x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()))


async def test_node_may_read_what_it_needs(callers: Callers) -> None:
    for kind in (Node, HostSubnet, NetNamespace, Namespace):
        await callers.mine.list(kind)
    actual = await callers.mine.list(Pod, field_selector="spec.nodeName=mine")
    assert [pod.metadata.name for pod in actual.items] == ["mine"]


async def test_node_may_write_its_node_and_status_of_its_pods(callers: Callers) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    node = await callers.mine.patch_status(Node, "mine", "", ready)
    assert node.status.conditions[0] == Condition(type="Ready", status="True")
    pod = await callers.mine.get(Pod, "mine", "default")
    written = await callers.mine.update_status(changed(pod, status=PodStatus(phase="Running")))
    assert written.status.phase == "Running"


async def test_node_may_not_attract_pods_or_set_owner_references(callers: Callers) -> None:
    removed = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone"}
    owned = {"metadata": {"ownerReferences": [removed]}}
    tainted = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    label = "node-restriction.kubernetes.io/x"
    labelled = {"metadata": {"labels": {label: "a"}}}
    before = await callers.administrator.get(Node, "mine")
    for patch, what in ((owned, "ownerReferences"), (tainted, "taints"), (labelled, f"labels: {label}")):
        for write in (callers.mine.patch, callers.mine.patch_status):
            with pytest.raises(Forbidden) as caught:
                await write(Node, "mine", "", patch)
            assert caught.value.status.message == f'nodes "mine" is forbidden: is not allowed to modify {what}'
    after = await callers.administrator.get(Node, "mine")
    assert (after.metadata.owner_references, after.metadata.labels) == ((), before.metadata.labels)
    mended = await callers.mine.patch(Node, "mine", "", {"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}})
    assert mended.metadata.labels["kubernetes.io/arch"] == "amd64"
    assert label in (await callers.administrator.patch(Node, "mine", "", labelled)).metadata.labels


async def test_node_may_get_only_objects_its_pods_reference(callers: Callers) -> None:
    master, mine, other = callers.administrator, callers.mine, callers.other
    config = ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"a": "1"})
    secret = Secret(metadata=ObjectMeta(name="settings", namespace="default"), data={"a": b"1"})
    for obj in (config, secret):
        await master.create(obj)
    volume = Volume(name="v", config_map=ConfigMapVolumeSource(name="settings"))
    spec = changed(SPEC, node_name="mine", volumes=(volume,))
    await master.create(Pod(metadata=ObjectMeta(name="reader", namespace="default"), spec=spec))
    field_selector = "metadata.name=settings"
    try:
        assert (await mine.get(ConfigMap, "settings", "default")).data == {"a": "1"}
        listed = await mine.list(ConfigMap, "default", field_selector=field_selector)
        assert [config_map.metadata.name for config_map in listed.items] == ["settings"]
        revision = str(int(listed.metadata.resource_version))
        await master.update(changed(await master.get(ConfigMap, "settings", "default"), data={"a": "2"}))
        event = await anext(aiter(mine.watch(ConfigMap, revision, "default", field_selector=field_selector)))
        assert event.object.data == {"a": "2"}
        for act in (
            lambda: other.get(ConfigMap, "settings", "default"),
            lambda: other.list(ConfigMap, "default", field_selector=field_selector),
            lambda: mine.list(ConfigMap, "default"),
            lambda: mine.list(ConfigMap, field_selector=field_selector),
            lambda: mine.get(Secret, "settings", "default"),
            lambda: mine.update(changed(config, data={})),
            lambda: mine.delete(ConfigMap, "settings", "default"),
        ):
            with pytest.raises(Forbidden):
                await act()
    finally:
        await master.delete(Pod, "reader", "default", grace_seconds=0)
    with pytest.raises(Forbidden):
        await mine.get(ConfigMap, "settings", "default")
    for kind in (ConfigMap, Secret):
        await master.delete(kind, "settings", "default")


async def test_node_may_read_storage_of_its_pods(callers: Callers) -> None:
    master, mine, other = callers.administrator, callers.mine, callers.other
    size = {"storage": "1Gi"}
    disk = PersistentVolume(
        metadata=ObjectMeta(name="disk"),
        spec=PersistentVolumeSpec(
            capacity=dict(size), access_modes=("ReadWriteOnce",), host_path=HostPathVolumeSource(path="/srv")
        ),
    )
    claim_spec = PersistentVolumeClaimSpec(
        access_modes=("ReadWriteOnce",), resources=ResourceRequirements(requests=dict(size)), volume_name="disk"
    )
    volume = Volume(name="v", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name="data"))
    spec = changed(SPEC, node_name="mine", volumes=(volume,))
    await master.create(disk)
    await master.create(Pod(metadata=ObjectMeta(name="keeper", namespace="default"), spec=spec))
    try:
        with pytest.raises(Forbidden):
            await mine.get(PersistentVolume, "disk")
        await master.create(
            PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="default"), spec=claim_spec)
        )
        async with asyncio.timeout(10):
            while (await mine.get(PersistentVolumeClaim, "data", "default")).status.phase != "Bound":
                await asyncio.sleep(0.01)
        claim = await mine.get(PersistentVolumeClaim, "data", "default")
        listed = await mine.list(PersistentVolume, field_selector="metadata.name=disk")
        assert [
            persistent_volume.spec.claim_ref.uid
            for persistent_volume in listed.items
            if persistent_volume.spec.claim_ref
        ] == [claim.metadata.uid]
        for act in (
            lambda: other.get(PersistentVolume, "disk"),
            lambda: other.get(PersistentVolumeClaim, "data", "default"),
            lambda: mine.list(PersistentVolume),
            lambda: mine.delete(PersistentVolume, "disk"),
        ):
            with pytest.raises(Forbidden):
                await act()
    finally:
        await master.delete(Pod, "keeper", "default", grace_seconds=0)
        await master.delete(PersistentVolumeClaim, "data", "default")
        await master.delete(PersistentVolume, "disk")


async def test_node_may_not_change_objects_of_others(callers: Callers) -> None:
    pod = await callers.administrator.get(Pod, "other", "default")
    subnet = HostSubnet(metadata=ObjectMeta(name="x"), host="x", host_ip="10.0.0.1", subnet="10.128.0.0/23")
    net_namespace = await callers.mine.get(NetNamespace, "default")
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: callers.mine.list(Pod),
        lambda: callers.mine.list(Pod, field_selector="spec.nodeName=other"),
        lambda: callers.mine.get(Pod, "other", "default"),
        lambda: callers.mine.update_status(changed(pod, status=PodStatus(phase="Failed"))),
        lambda: callers.mine.delete(Pod, "other", "default", grace_seconds=0),
        lambda: callers.mine.delete(Node, "other"),
        lambda: callers.mine.patch_status(Node, "other", "", {"status": {}}),
        lambda: callers.mine.create(Node(metadata=ObjectMeta(name="third"))),
        lambda: callers.mine.create(Namespace(metadata=ObjectMeta(name="third"))),
        lambda: callers.mine.create(subnet),
        lambda: callers.mine.update(changed(net_namespace, netid=7)),
        lambda: callers.mine.bind(pod, "mine"),
        lambda: callers.mine.create(Pod(metadata=ObjectMeta(name="new", namespace="default"), spec=SPEC)),
    ]
    for act in refused:
        with pytest.raises(Forbidden):
            await act()
    assert (await callers.administrator.get(Pod, "other", "default")).status.phase == "Pending"
