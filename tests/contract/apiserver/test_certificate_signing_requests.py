"""CertificateSigningRequests over HTTP: created, approved and signed."""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from api.core.certificates import CLIENT_SIGNER, CLIENT_USAGES, KUBELET_CLIENT_SIGNER
from api.pki import keys
from api.pki.pem import Subject
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
PROGRAMS = sorted(str(path) for path in Path(shutil.which("kubectl") or "/").resolve().parent.glob("kubectl*"))
HOUR = datetime.timedelta(hours=1)


def rsa_request(bits: int) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dave")])
    created = x509.CertificateSigningRequestBuilder().subject_name(name)
    return created.sign(rsa.generate_private_key(65537, bits), SHA256()).public_bytes(Encoding.PEM)


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


Kubectl = Callable[..., str]


def csr_spec(user: str = "dave", signer: str = CLIENT_SIGNER, **spec: Any) -> dict[str, Any]:
    pem = keys.create_request(keys.generate_key(), Subject(user, ("dev",)))
    return {"request": base64.b64encode(pem).decode(), "signerName": signer, "usages": list(CLIENT_USAGES), **spec}


@pytest.fixture(params=PROGRAMS, ids=[Path(program).name for program in PROGRAMS])
def kubectl(server: ApiServer, request: pytest.FixtureRequest, tmp_path: Path) -> Kubectl:
    def run(*words: str, code: int = 0) -> str:
        command = [request.param, f"--kubeconfig={server.kubeconfig}", *words]
        home = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=home)
        assert done.returncode == code, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    return run


async def test_signing_request_is_created_by_a_user_and_approved_by_an_administrator(
    server: ApiServer, api_client: UntypedClient, kubectl: Kubectl
) -> None:
    requested = await api_client.create(PATH, metadata={"generateName": "dave-"}, spec=csr_spec(expirationSeconds=3600))
    name = requested["metadata"]["name"]
    assert requested["spec"]["username"] == "system:admin"
    assert "system:masters" in requested["spec"]["groups"]
    lines = (await asyncio.to_thread(kubectl, "get", "csr", name)).splitlines()
    assert lines[0].split() == ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"]
    assert lines[1].split()[2:] == [CLIENT_SIGNER, "system:admin", "60m", "Pending"]
    output = await asyncio.to_thread(kubectl, "certificate", "approve", name)
    assert output.strip() == f"certificatesigningrequest.certificates.k8s.io/{name} approved"
    actual = await api_client.wait_until(f"{PATH}/{name}", lambda csr: "certificate" in csr.get("status", {}))
    certificate = keys.parse_certificate(base64.b64decode(actual["status"]["certificate"]))
    assert certificate.subject == Subject("dave", ("dev",))
    assert certificate.not_after - certificate.not_before == HOUR
    assert "Approved,Issued" in await asyncio.to_thread(kubectl, "get", "csr", name)
    assert "dave" in await asyncio.to_thread(kubectl, "describe", "csr", name)
    refused = f"{name}-2"
    await api_client.create(PATH, name=refused, spec=csr_spec())
    output = await asyncio.to_thread(kubectl, "certificate", "deny", refused)
    assert "denied" in output
    assert "Denied" in await asyncio.to_thread(kubectl, "get", "csr", refused)
    assert "certificate" not in (await api_client.request("GET", f"{PATH}/{refused}"))["status"]
    await asyncio.to_thread(kubectl, "certificate", "approve", refused, code=1)


async def test_invalid_signing_request_is_rejected_field_by_field(api_client: UntypedClient) -> None:
    spec = {"request": base64.b64encode(b"x").decode(), "signerName": "nobody", "usages": ["a", "a"]}
    actual = await api_client.request(
        "POST", PATH, {"metadata": {"name": "x"}, "spec": {**spec, "expirationSeconds": 599}}
    )
    words = ("spec.request", "spec.signerName", "spec.expirationSeconds", "spec.usages[0]", "spec.usages[1]")
    assert actual["code"] == 422
    assert [word for word in words if word not in actual["message"]] == []
    for bad in (rsa_request(1024), rsa_request(2048) * 2, b"\n" * (64 << 10) + rsa_request(2048)):
        actual = await api_client.request(
            "POST", PATH, {"metadata": {"name": "x"}, "spec": csr_spec(request=encoded(bad))}
        )
        assert (actual["code"], "spec.request" in actual["message"]) == (422, True)
    await api_client.create(PATH, name="rsa", spec=csr_spec(request=encoded(rsa_request(2048))))
    for group in ("system:masters", "system:cluster-admins"):
        wanted = base64.b64encode(keys.create_request(keys.generate_key(), Subject("eve", (group,)))).decode()
        actual = await api_client.request("POST", PATH, {"metadata": {"name": "x"}, "spec": csr_spec(request=wanted)})
        assert (actual["code"], f"{group} group is not allowed" in actual["message"]) == (403, True)


async def test_signing_request_spec_is_immutable_and_each_subresource_writes_its_part(
    api_client: UntypedClient,
) -> None:
    requested = await api_client.create(PATH, name="stays", spec=csr_spec(), status={"certificate": "eA=="})
    assert requested["status"] == {}
    changed = await api_client.request(
        "PATCH", f"{PATH}/stays", {"spec": {"signerName": KUBELET_CLIENT_SIGNER}, "metadata": {"labels": {"a": "b"}}}
    )
    assert (changed["spec"], changed["metadata"]["labels"]) == (requested["spec"], {"a": "b"})
    approved = {"type": "Approved", "status": "True", "reason": "x"}
    actual = await api_client.request("PATCH", f"{PATH}/stays/status", {"status": {"conditions": [approved]}})
    assert (actual["code"], actual["causes"]) == (
        422,
        ['Forbidden: updates may not add a condition of type "Approved"'],
    )
    mine = {"signerName": "example.org/mine"}
    await api_client.create(PATH, name="mine", spec=csr_spec(**mine))
    both = {"metadata": {"annotations": {"by": "me"}}, "status": {"conditions": [approved], "certificate": "eA=="}}
    actual = await api_client.request("PATCH", f"{PATH}/mine/approval", both)
    assert actual["metadata"]["annotations"] == {"by": "me"}
    assert actual["status"]["conditions"][0]["lastUpdateTime"]
    assert "certificate" not in actual["status"]
    actual = await api_client.request(
        "PATCH", f"{PATH}/mine/approval", {"status": {"conditions": [{**approved, "type": "Denied"}]}}
    )
    assert (actual["code"], "may not remove a condition" in actual["message"]) == (422, True)
    actual = await api_client.request("PATCH", f"{PATH}/mine/status", {"status": {"certificate": "eA=="}})
    assert (actual["code"], "status.certificate" in actual["message"]) == (422, True)
    pem = base64.b64encode(
        keys.self_signed(keys.generate_key(), Subject("x"), datetime.datetime.now(datetime.UTC))
    ).decode()
    actual = await api_client.request("PATCH", f"{PATH}/mine/status", {"status": {"certificate": pem}})
    assert (actual["status"]["certificate"], actual["status"]["conditions"][0]["type"]) == (pem, "Approved")


async def test_signer_reports_why_it_cannot_sign(api_client: UntypedClient) -> None:
    await api_client.create(PATH, name="fails", spec=csr_spec(usages=["server auth"]))
    await api_client.request(
        "PATCH", f"{PATH}/fails/approval", {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    )
    actual = await api_client.wait_until(f"{PATH}/fails", lambda csr: len(csr["status"]["conditions"]) == 2)
    failed = actual["status"]["conditions"][1]
    assert (failed["type"], failed["reason"]) == ("Failed", "SignerValidationFailure")
    assert failed["message"] == "invalid usage for client certificate: server auth"


async def test_approving_and_signing_need_separate_permissions(
    server: ApiServer, api_client: UntypedClient, tmp_path: Path
) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    parts = {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests/approval"],
        "verbs": ["update", "patch"],
    }
    signs = {**parts, "resources": ["certificatesigningrequests/status"]}
    domain = {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"],
        "resourceNames": ["example.org/*"],
        "verbs": ["approve"],
    }
    await api_client.create(f"{rbac}/clusterroles", name="approver", rules=[parts, signs, domain])
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approver"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "amy"}
    await api_client.create(f"{rbac}/clusterrolebindings", name="approvers", roleRef=role, subjects=[subject])
    for name, signer in (("hers", "example.org/x"), ("not-hers", "example.com/x")):
        await api_client.create(PATH, name=name, spec=csr_spec(signerName=signer))
    patch = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    async with user_session(server, tmp_path, "amy") as amy:
        assert (await _patched(amy, f"{PATH}/hers/approval", patch))[0] == 200
        code, message = await _patched(amy, f"{PATH}/not-hers/approval", patch)
        assert (code, 'not permitted to approve requests with signerName "example.com/x"' in message) == (403, True)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        code, message = await _patched(amy, f"{PATH}/not-hers/status", ready)
        assert (code, 'not permitted to sign requests with signerName "example.com/x"' in message) == (403, True)


async def _patched(session: aiohttp.ClientSession, path: str, patch: dict[str, Any]) -> tuple[int, str]:
    kind = {"Content-Type": "application/merge-patch+json"}
    async with session.patch(path, json=patch, headers=kind) as answer:
        return answer.status, (await answer.json()).get("message", "")
