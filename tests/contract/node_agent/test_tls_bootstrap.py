"""Machines that join by a bootstrap token, and nodes that renew their certificates, against a real master."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml
from msgspec.structs import replace

from api.client.bootstrap import bootstrap_kubeconfig, node_kubeconfig
from api.client.client import ApiError, Client, Forbidden
from api.client.kubeconfig import Kubeconfig
from api.core.certificates import (
    APPROVED,
    CLIENT_USAGES,
    KUBELET_CLIENT_SIGNER,
    KUBELET_SERVING_SIGNER,
    SERVER_USAGES,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    csr_condition,
)
from api.core.config import Secret
from api.core.node import Node, NodeAddress, NodeStatus
from api.meta.types import Condition, ObjectMeta
from api.pki import keys
from api.pki.pem import Subject
from node_agent.certificates.authorities import Authorities
from node_agent.certificates.client import ClientCertificate, load_kubeconfig
from node_agent.certificates.csr import CertificateSpec, request_certificate
from node_agent.certificates.serving import ServingCertificate
from node_agent.config import Settings
from reconcile.errors import NotReady
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.tls_connector import tls_connector

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
HOUR = datetime.timedelta(hours=1)
ADDRESS = "authentication.podlane.io/address"
KUBERNETES = "kubernetes.default.svc"


@dataclass(frozen=True)
class AgentFiles:
    """The directory and the settings of an agent."""

    root: Path
    settings: Settings


async def prepare_files(root: Path, administrator: Client, server: ApiServer, name: str) -> AgentFiles:
    first = root / "bootstrap"
    first.write_text(await bootstrap_kubeconfig(administrator, Kubeconfig.load(server.kubeconfig), HOUR))
    settings = Settings(
        node_name=name,
        node_ip="10.245.9.9",
        kubeconfig=str(root / "kubeconfig"),
        bootstrap_kubeconfig=str(first),
        state_dir=str(root / "state"),
        server_tls_bootstrap=True,
    )
    return AgentFiles(root, settings)


@pytest.fixture
async def administrator(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield client


async def test_machine_joins_by_bootstrap_token_and_keeps_its_certificate(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    here = await prepare_files(tmp_path, administrator, server, "joins")
    config = await load_kubeconfig(here.settings)
    assert keys.parse_certificate(config.certificate).subject == Subject("system:node:joins", ("system:nodes",))
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert list((tmp_path / "state" / "pki").iterdir()) == []
    (csr,) = await _asked_of(administrator, KUBELET_CLIENT_SIGNER)
    assert csr.spec.username.startswith("system:bootstrap:")
    approved = csr_condition(csr, APPROVED)
    assert approved is not None
    assert approved.reason == "AutoApproved"
    # The token is needed no more: the next start is by the certificate.
    (tmp_path / "bootstrap").unlink()
    again = await load_kubeconfig(here.settings)
    assert again.certificate == config.certificate
    async with Client(again) as node:
        await node.create(Node(metadata=ObjectMeta(name="joins"), status=NodeStatus()))
        with pytest.raises(Forbidden):
            await node.create(Node(metadata=ObjectMeta(name="another"), status=NodeStatus()))


async def test_expired_or_wrong_bootstrap_token_is_rejected(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    config = Kubeconfig.load(server.kubeconfig)
    text = await bootstrap_kubeconfig(administrator, config, -HOUR)
    token = yaml.safe_load(text)["users"][0]["user"]["token"]
    for bad_token in (token, f"{token[:-1]}!", "aaaaaa.bbbbbbbbbbbbbbbb"):
        async with Client(Kubeconfig(config.server, config.ca, token=bad_token)) as nobody:
            with pytest.raises(ApiError) as refused:
                await nobody.list(CertificateSigningRequest)
        assert refused.value.status.code == 401


async def test_bootstrap_token_may_only_request_certificates(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    (tmp_path / "b").write_text(await bootstrap_kubeconfig(administrator, Kubeconfig.load(server.kubeconfig), HOUR))
    async with Client(Kubeconfig.load(tmp_path / "b")) as client:
        await client.list(CertificateSigningRequest)
        for kind in (Node, Secret):
            with pytest.raises(Forbidden):
                await client.list(kind)


async def test_restarted_agent_finds_its_signing_request(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    """Requests of this signer are not approved automatically."""
    what = CertificateSpec("example.org/slow", CLIENT_USAGES, Subject("x"))
    async with asyncio.timeout(30):
        first = asyncio.create_task(request_certificate(administrator, what, tmp_path / "key"))
        while not (csrs := await _asked_of(administrator, "example.org/slow")):
            await asyncio.sleep(0.02)
        first.cancel()
        second = asyncio.create_task(request_certificate(administrator, what, tmp_path / "key"))
        (csr,) = csrs
        key = (tmp_path / "key").read_bytes()
        signed = keys.self_signed(key, Subject("x"), datetime.datetime.now(datetime.UTC))
        await administrator.patch_status(
            CertificateSigningRequest,
            csr.metadata.name,
            "",
            {"status": {"certificate": base64.b64encode(signed).decode()}},
        )
        identity = await second
    assert (identity.key, identity.certificate) == (key, signed)
    assert len(await _asked_of(administrator, "example.org/slow")) == 1


async def _asked_of(client: Client, signer: str) -> tuple[CertificateSigningRequest, ...]:
    actual = await client.list(CertificateSigningRequest, field_selector=f"spec.signerName={signer}")
    return tuple(actual.items)


async def test_denied_agent_reports_it_and_requests_again_when_the_request_is_gone(
    server: ApiServer, administrator: Client, tmp_path: Path, api_client: UntypedClient
) -> None:
    what = CertificateSpec("example.org/strict", CLIENT_USAGES, Subject("x"))
    waiting = asyncio.create_task(request_certificate(administrator, what, tmp_path / "key"))
    async with asyncio.timeout(30):
        while not (csrs := await _asked_of(administrator, "example.org/strict")):
            await asyncio.sleep(0.02)
        (csr,) = csrs
        denied = {"type": "Denied", "status": "True", "reason": "NotKnown", "message": "who is that?"}
        await api_client.request("PATCH", f"{PATH}/{csr.metadata.name}/approval", {"status": {"conditions": [denied]}})
        with pytest.raises(NotReady, match=r"was denied \(NotKnown: who is that\?\)"):
            await waiting
        with pytest.raises(NotReady, match="was denied"):
            await request_certificate(administrator, what, tmp_path / "key")
        await administrator.delete(CertificateSigningRequest, csr.metadata.name)
        again = asyncio.create_task(request_certificate(administrator, what, tmp_path / "key"))
        while not (csrs := await _asked_of(administrator, "example.org/strict")):
            await asyncio.sleep(0.02)
        assert csrs[0].metadata.uid != csr.metadata.uid
        again.cancel()


async def test_node_renews_its_certificate_and_its_client_uses_it(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    here = await prepare_files(tmp_path, administrator, server, "renews")
    (tmp_path / "kubeconfig").write_text(
        await node_kubeconfig(administrator, Kubeconfig.load(server.kubeconfig), "renews")
    )
    before = Kubeconfig.load(tmp_path / "kubeconfig")
    later = keys.parse_certificate(before.certificate).not_after - datetime.timedelta(days=30)
    async with Client(before) as client:
        watching = client.watch(CertificateSigningRequest, "0")
        await anext(watching)
        serving = ServingCertificate(here.settings, client)
        authorities = Authorities(here.settings, client, lambda _: None)
        await ClientCertificate(here.settings, client, authorities=authorities, serving=serving).rotate()
        assert Kubeconfig.load(tmp_path / "kubeconfig").certificate == before.certificate
        client_certificate = ClientCertificate(
            here.settings, client, lambda: later, authorities=authorities, serving=serving
        )
        await client_certificate.rotate()
        after = Kubeconfig.load(tmp_path / "kubeconfig")
        assert after.certificate != before.certificate
        assert keys.parse_certificate(after.certificate).subject == keys.parse_certificate(before.certificate).subject
        await client.create(Node(metadata=ObjectMeta(name="renews"), status=NodeStatus()))
        assert client.kubeconfig.certificate == after.certificate
        # What had begun under the old certificate goes on.
        assert (await anext(watching)).type in ("ADDED", "MODIFIED")
        await watching.aclose()


async def test_serving_certificate_names_only_its_node(
    server: ApiServer, administrator: Client, tmp_path: Path, api_client: UntypedClient
) -> None:
    """A request with its address stays pending, because the node does not reach the master from that address."""
    here = await prepare_files(tmp_path, administrator, server, "serves")
    address = NodeAddress(type="InternalIP", address="10.245.9.9")
    async with Client(await load_kubeconfig(here.settings)) as client:
        await client.create(Node(metadata=ObjectMeta(name="serves"), status=NodeStatus(addresses=(address,))))
        serving_certificate = ServingCertificate(here.settings, client)
        await serving_certificate.load()
        async with asyncio.timeout(30):
            waiting = asyncio.create_task(serving_certificate.renew())
            while not (
                csrs := [csr for csr in await _asked_of(administrator, KUBELET_SERVING_SIGNER) if _is_of(csr, "serves")]
            ):
                await asyncio.sleep(0.02)
            (renewed,) = csrs
            assert renewed.spec.extra == {ADDRESS: ("127.0.0.1",)}
            approved = {"type": "Approved", "status": "True", "reason": "LookedAt"}
            path = f"{PATH}/{renewed.metadata.name}/approval"
            await api_client.request("PATCH", path, {"status": {"conditions": [approved]}})
            await waiting
        pem = (tmp_path / "state" / "pki" / "serving.pem").read_bytes()
        own = Subject("system:node:serves", ("system:nodes",), ("serves",), ("10.245.9.9",))
        assert keys.parse_certificate(pem).subject == own
        # Another start uses what there is.
        await ServingCertificate(here.settings, client).load()
        node = await client.get(Node, "serves")
        poses = NodeAddress(type="InternalIP", address="172.30.0.1"), NodeAddress(type="Hostname", address=KUBERNETES)
        await client.update_status(replace(node, status=NodeStatus(addresses=(address, *poses))))
        desired = {
            "far": (("serves",), ("10.245.9.8",)),
            "posing": ((KUBERNETES,), ()),
            "service": (("serves",), ("172.30.0.1",)),
            "stated": ((), ("10.245.9.9",)),
        }
        for name, addresses in desired.items():
            await client.create(serving_request(name, Subject("system:node:serves", ("system:nodes",), *addresses)))
        # Requests are looked at in the order of their names: when this one is approved, those were passed over.
        await client.create(serving_request("zoo", Subject(own.user, own.groups, own.dns_names)))
        async with asyncio.timeout(30):
            while not (await client.get(CertificateSigningRequest, "zoo")).status.certificate:
                await asyncio.sleep(0.02)
        for name in desired:
            assert (await client.get(CertificateSigningRequest, name)).status.conditions == ()
            (output,) = [line for line in server.log().splitlines() if f"kubectl certificate approve {name}" in line]
            assert "not approved automatically" in output
        with pytest.raises(Forbidden, match="can only create a node CSR with CN=system:node:serves"):
            await client.create(serving_request("greedy", Subject("system:node:joins", ("system:nodes",), ("joins",))))


def _is_of(csr: CertificateSigningRequest, node: str) -> bool:
    return csr.spec.username == f"system:node:{node}"


async def test_requesters_address_is_set_by_the_server_only(
    server: ApiServer, administrator: Client, api_client: UntypedClient
) -> None:
    pem = base64.b64encode(keys.create_request(keys.generate_key(), Subject("dave"))).decode()
    output = {ADDRESS: ["10.6.6.6"]}
    spec = {"request": pem, "signerName": "example.org/x", "usages": list(CLIENT_USAGES), "extra": output}
    created = await api_client.create(PATH, name="plain", spec=spec)
    assert created["spec"]["extra"] == {ADDRESS: ["127.0.0.1"]}
    document = {"metadata": {"name": "disguised"}, "spec": spec}
    config = Kubeconfig.load(server.kubeconfig)
    disguise = {
        "Impersonate-User": "system:node:n1",
        "Impersonate-Group": "system:masters",
        "Impersonate-Extra-authentication.podlane.io%2Faddress": "10.6.6.6",
        "Impersonate-Extra-Scopes": "a",
    }
    async with aiohttp.ClientSession(config.server, connector=tls_connector(context(config))) as session:
        async with session.post(PATH, json=document, headers=disguise) as answer:
            spec = (await answer.json())["spec"]
        assert (spec["username"], spec["extra"]) == ("system:node:n1", {"scopes": ["a"]})
        # Nobody changes it afterwards.
        patch = {"spec": {"extra": output}}
        for path in ("", "/approval", "/status"):
            await api_client.request("PATCH", f"{PATH}/plain{path}", patch)
        assert (await api_client.request("GET", f"{PATH}/plain"))["spec"]["extra"] == {ADDRESS: ["127.0.0.1"]}


def context(config: Kubeconfig) -> ssl.SSLContext:
    created = ssl.create_default_context(cadata=config.ca.decode())
    with tempfile.NamedTemporaryFile() as both:
        both.write(config.key + b"\n" + config.certificate)
        both.flush()
        created.load_cert_chain(both.name)
    return created


async def test_bootstrap_token_gets_no_certificate_of_an_active_node(
    server: ApiServer, administrator: Client, tmp_path: Path
) -> None:
    """It gets the certificate of a lost node, which was off for longer than its certificate was valid."""
    here = await prepare_files(tmp_path, administrator, server, "lives")
    async with Client(await load_kubeconfig(here.settings)) as client:
        ready = Condition(type="Ready", status="True")
        node = await client.create(Node(metadata=ObjectMeta(name="lives"), status=NodeStatus(conditions=(ready,))))
    async with Client(Kubeconfig.load(here.settings.bootstrap_kubeconfig)) as machine, asyncio.timeout(30):
        for name in ("a-thief", "b-thief"):
            user = "system:node:lives" if name == "a-thief" else "system:node:a/b"
            pem = keys.create_request(keys.generate_key(), Subject(user, ("system:nodes",)))
            spec = CertificateSigningRequestSpec(request=pem, signer_name=KUBELET_CLIENT_SIGNER, usages=CLIENT_USAGES)
            await machine.create(CertificateSigningRequest(metadata=ObjectMeta(name=name), spec=spec))
        # Requests are looked at in the order of their names: when this one is approved, those were passed over.
        pem = keys.create_request(keys.generate_key(), Subject("system:node:new", ("system:nodes",)))
        spec = CertificateSigningRequestSpec(request=pem, signer_name=KUBELET_CLIENT_SIGNER, usages=CLIENT_USAGES)
        await machine.create(CertificateSigningRequest(metadata=ObjectMeta(name="c-new"), spec=spec))
        while not (await machine.get(CertificateSigningRequest, "c-new")).status.certificate:
            await asyncio.sleep(0.02)
        for name in ("a-thief", "b-thief"):
            assert (await machine.get(CertificateSigningRequest, name)).status.conditions == ()
        silent = replace(node, status=NodeStatus(conditions=(replace(ready, status="Unknown"),)))
        await administrator.update_status(replace(silent, metadata=replace(node.metadata, resource_version="")))
        while not (await machine.get(CertificateSigningRequest, "a-thief")).status.certificate:
            await asyncio.sleep(0.02)
        assert (await machine.get(CertificateSigningRequest, "b-thief")).status.conditions == ()


def serving_request(name: str, subject: Subject) -> CertificateSigningRequest:
    pem = keys.create_request(keys.generate_key(), subject)
    spec = CertificateSigningRequestSpec(request=pem, signer_name=KUBELET_SERVING_SIGNER, usages=SERVER_USAGES)
    return CertificateSigningRequest(metadata=ObjectMeta(name=name), spec=spec)
