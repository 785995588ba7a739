"""Access of pods to the master: the `kubernetes` service, its names, and service accounts."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from cryptography import x509

from api.client.client import Client, Forbidden
from api.client.kubeconfig import Kubeconfig
from api.core.config import ConfigMap
from api.core.endpoints import Endpoints, EndpointSlice
from api.core.events import Event
from api.core.node import Namespace
from api.core.pod import Container, Pod, PodSpec
from api.core.services import Service
from api.meta.types import LocalObjectReference, ObjectMeta
from tests.testbed.apiserver.process import ApiServer

WAITING = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: waiting, namespace: robots}
spec:
  selector: {matchLabels: {app: waiting}}
  template:
    metadata: {labels: {app: waiting}}
    spec: {serviceAccountName: robot, containers: [{name: main, image: toolbox}]}
"""
ROBOT = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: robots}
imagePullSecrets: [{name: key}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture
async def master(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield client


def pod(name: str, namespace: str, **spec: Any) -> Pod:
    pod_spec = PodSpec(containers=(Container(name="main", image="toolbox"),), **spec)
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace), spec=pod_spec)


async def test_pod_created_right_after_its_namespace_has_the_default_service_account(master: Client) -> None:
    for number in range(20):
        name = f"fresh-{number}"
        await master.create(Namespace(metadata=ObjectMeta(name=name)))
        made = await master.create(pod("p", name))
        assert (made.spec.service_account_name, made.spec.service_account) == ("default", "default")
        (volume,) = made.spec.volumes
        assert re.fullmatch("kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}", volume.name)
        assert [mount.name for mount in made.spec.containers[0].volume_mounts] == [volume.name]
        assert (await master.get(Pod, "p", name)).spec.volumes == made.spec.volumes
        assert (await master.get(ConfigMap, "kube-root-ca.crt", name)).data["ca.crt"].startswith("-----BEGIN")


async def test_missing_service_account_is_awaited_by_controllers_only(server: ApiServer, master: Client) -> None:
    await master.create(Namespace(metadata=ObjectMeta(name="robots")))
    words = 'error looking up service account robots/robot: serviceaccount "robot" not found'
    with pytest.raises(Forbidden, match=words):
        await master.create(pod("p", "robots", service_account_name="robot"))

    def apply(manifest: str) -> None:
        command = ["kubectl", f"--kubeconfig={server.kubeconfig}", "create", "-f", "-"]
        subprocess.run(command, input=manifest, text=True, check=True, timeout=60, capture_output=True)

    await asyncio.to_thread(apply, WAITING)
    async with asyncio.timeout(10):
        while not [event for event in (await master.list(Event, "robots")).items if words in event.message]:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(apply, ROBOT)
    async with asyncio.timeout(10):
        while not (pods := (await master.list(Pod, "robots")).items):
            await asyncio.sleep(0.01)
    assert pods[0].spec.image_pull_secrets == (LocalObjectReference(name="key"),)


async def test_kubernetes_service_has_the_masters_endpoint(server: ApiServer, master: Client) -> None:
    port = int(server.url.rpartition(":")[2])
    async with asyncio.timeout(10):
        while not [
            endpoints for endpoints in (await master.list(Endpoints)).items if endpoints.metadata.name == "kubernetes"
        ]:
            await asyncio.sleep(0.01)
    service = await master.get(Service, "kubernetes", "default")
    assert (service.spec.cluster_ip, service.spec.ports[0].port) == ("172.30.0.1", 443)
    (subset,) = (await master.get(Endpoints, "kubernetes", "default")).subsets
    assert (subset.addresses[0].ip, subset.ports[0].port) == ("127.0.0.1", port)
    slices = await master.get(EndpointSlice, "kubernetes", "default")
    assert (slices.endpoints[0].addresses, slices.ports[0].port) == (("127.0.0.1",), port)
    await master.delete(Service, "kubernetes", "default")
    async with asyncio.timeout(10):
        while not [other for other in (await master.list(Service)).items if other.metadata.uid != service.metadata.uid]:
            await asyncio.sleep(0.01)
    assert (await master.get(Service, "kubernetes", "default")).spec == service.spec


@pytest.mark.parametrize("name", ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "172.30.0.1"])
def test_serving_certificate_covers_the_kubernetes_service_names(server: ApiServer, name: str) -> None:
    context = ssl.create_default_context(cadata=Kubeconfig.load(server.kubeconfig).ca.decode())
    where = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(where) as plain, context.wrap_socket(plain, server_hostname=name) as tls:
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    assert x509.load_der_x509_certificate(der).subject.rfc4514_string() == "CN=podlane-master"
    with socket.create_connection(where) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(plain, server_hostname="kubernetes.red.svc")
