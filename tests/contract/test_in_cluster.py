"""What pods rely on to talk to the master: its service, its names, their accounts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import pytest
from cryptography import x509

from api.client import Client
from api.endpoints import Endpoints, EndpointSlice
from api.kubeconfig import Kubeconfig
from api.services import Service
from tests.contract.apiserver import ApiServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    one = ApiServer(tmp_path_factory.mktemp("master"))
    one.start()
    yield one
    assert one.stop() == 0


@pytest.fixture
async def master(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield client


async def test_the_service_kubernetes_leads_to_the_master(server: ApiServer, master: Client) -> None:
    port = int(server.url.rpartition(":")[2])
    async with asyncio.timeout(10):
        while not [item for item in (await master.list(Endpoints)).items if item.metadata.name == "kubernetes"]:
            await asyncio.sleep(0.01)
    service = await master.get(Service, "kubernetes", "default")
    assert (service.spec.cluster_ip, service.spec.ports[0].port) == ("172.30.0.1", 443)
    (subset,) = (await master.get(Endpoints, "kubernetes", "default")).subsets
    assert (subset.addresses[0].ip, subset.ports[0].port) == ("127.0.0.1", port)
    slices = await master.get(EndpointSlice, "kubernetes", "default")
    assert (slices.endpoints[0].addresses, slices.ports[0].port) == (("127.0.0.1",), port)
    await master.delete(Service, "kubernetes", "default")
    async with asyncio.timeout(10):
        while not [one for one in (await master.list(Service)).items if one.metadata.uid != service.metadata.uid]:
            await asyncio.sleep(0.01)
    assert (await master.get(Service, "kubernetes", "default")).spec == service.spec


@pytest.mark.parametrize("name", ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "172.30.0.1"])
def test_the_certificate_holds_for_the_names_of_the_service(server: ApiServer, name: str) -> None:
    context = ssl.create_default_context(cadata=Kubeconfig.load(server.kubeconfig).ca.decode())
    where = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(where) as plain, context.wrap_socket(plain, server_hostname=name) as tls:
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    assert x509.load_der_x509_certificate(der).subject.rfc4514_string() == "CN=podlane-master"
    with socket.create_connection(where) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(plain, server_hostname="kubernetes.red.svc")
