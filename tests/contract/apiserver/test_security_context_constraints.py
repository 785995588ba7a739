"""SCCs as clients see them: both forms of the kind, the reviews of `oc policy`, and a master without SCCs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session

SECURITY = "/apis/security.openshift.io/v1"
SCCS, LEGACY_SCCS = f"{SECURITY}/securitycontextconstraints", "/api/v1/securitycontextconstraints"
REVIEWS = f"{SECURITY}/namespaces/red"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings"
PRIVILEGED = {"securityContext": {"privileged": True}}
OWN = {
    "metadata": {"name": "own"},
    "runAsUser": {"type": "MustRunAs", "uid": 1234},
    "seLinuxContext": {"type": "RunAsAny"},
    "allowPrivilegedContainer": False,
    "users": ["ann"],
}


def template(container: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "registry.example.com/app", **(container or {})}
    return {"template": {"spec": {"containers": [main], **spec}}}


async def bind(api_client: UntypedClient, binding: str, role: str, **subject: str) -> None:
    group = {} if subject["kind"] == "ServiceAccount" else {"apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    await api_client.request(
        "POST", RBAC, {"metadata": {"name": binding}, "subjects": [{**subject, **group}], "roleRef": reference}
    )


@pytest.fixture
async def red(api_client: UntypedClient) -> str:
    """Make the project with its administrator ann, its viewer eve, and an account that may use privileged."""
    await api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "red"}})
    await bind(api_client, "ann", "admin", kind="User", name="ann")
    await bind(api_client, "eve", "view", kind="User", name="eve")
    await api_client.request("POST", "/api/v1/namespaces/red/serviceaccounts", {"metadata": {"name": "mighty"}})
    role = "system:openshift:scc:privileged"
    await bind(api_client, "mighty", role, kind="ServiceAccount", name="mighty", namespace="red")
    return "red"


@pytest.fixture
async def ann(server: ApiServer, red: str, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "ann") as session:
        yield session


async def review(session: aiohttp.ClientSession, plural: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a review, or the error."""
    async with session.post(f"{REVIEWS}/{plural}", json={"spec": spec}) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == (answer["code"] if answer["kind"] == "Status" else 201)
        return answer if answer["kind"] == "Status" else answer["status"]


# --- the two forms ----------------------------------------------------------------------------------------------------


async def test_scc_has_a_form_in_the_core_group(api_client: UntypedClient) -> None:
    """Manifests of OpenShift 3 have `apiVersion: v1`."""
    created = await api_client.request("POST", LEGACY_SCCS, {"apiVersion": "v1", **OWN})
    assert (created["apiVersion"], created["allowHostPorts"]) == ("v1", False)
    found = await api_client.request("GET", f"{SCCS}/own")
    assert found["apiVersion"] == "security.openshift.io/v1"
    assert {**found, "apiVersion": "v1"} == created
    found["priority"] = 7
    await api_client.request("PUT", f"{SCCS}/own", found)
    legacy = await api_client.request("GET", LEGACY_SCCS)
    priorities = {scc["metadata"]["name"]: scc["priority"] for scc in legacy["items"]}
    assert (priorities["own"], priorities["anyuid"]) == (7, 10)
    assert (await api_client.request("DELETE", f"{LEGACY_SCCS}/own"))["status"] == "Success"
    assert (await api_client.request("GET", f"{SCCS}/own"))["code"] == 404


async def test_both_forms_are_validated(api_client: UntypedClient) -> None:
    for path in (SCCS, LEGACY_SCCS):
        refused = await api_client.request("POST", path, {**OWN, "priority": -1})
        assert (refused["code"], refused["reason"]) == (422, "Invalid")
        assert "priority cannot be negative" in refused["message"]


# --- reviews ----------------------------------------------------------------------------------------------------------


async def test_user_learns_which_scc_admits_an_own_pod(ann: aiohttp.ClientSession) -> None:
    status = await review(ann, "podsecuritypolicyselfsubjectreviews", template())
    assert (status["allowedBy"]["name"], status["allowedBy"]["kind"]) == ("restricted-v2", "SecurityContextConstraints")
    assert "template" not in status
    status = await review(ann, "podsecuritypolicyselfsubjectreviews", template(PRIVILEGED))
    assert "allowedBy" not in status
    assert status["reason"].startswith("CantAssignSecurityContextConstraintProvider: ")
    assert "Privileged containers are not allowed" in status["reason"]
    mighty = template(PRIVILEGED, serviceAccountName="mighty")
    status = await review(ann, "podsecuritypolicyselfsubjectreviews", mighty)
    assert status["allowedBy"]["name"] == "privileged"
    (container,) = status["template"]["spec"]["containers"]
    assert container["securityContext"] == {"privileged": True}


async def test_administrator_of_a_project_reviews_a_user(ann: aiohttp.ClientSession) -> None:
    plural = "podsecuritypolicysubjectreviews"
    everybody = {"user": "bob", "groups": ["system:authenticated"]}
    assert (await review(ann, plural, {**template(), **everybody}))["allowedBy"]["name"] == "restricted-v2"
    admins = {"user": "root", "groups": ["system:masters"]}
    assert (await review(ann, plural, {**template(), **admins}))["allowedBy"]["name"] == "anyuid"
    nobody = await review(ann, plural, {**template(), "user": "bob"})
    assert nobody["reason"].startswith("CantAssignSecurityContextConstraintProvider: ")
    completed = await review(ann, plural, {**template(serviceAccountName="default"), **everybody})
    context = completed["template"]["spec"]["containers"][0]["securityContext"]
    assert context["runAsUser"] == completed["template"]["spec"]["securityContext"]["fsGroup"] >= 1_000_000_000
    missing = await review(ann, plural, template())
    assert (missing["code"], missing["reason"]) == (422, "Invalid")


async def test_review_names_each_account_and_scc_that_admit_a_pod(ann: aiohttp.ClientSession) -> None:
    plural = "podsecuritypolicyreviews"
    names = {"serviceAccountNames": ["default", "mighty"]}
    status = await review(ann, plural, {**template(PRIVILEGED), **names})
    assert [(each["name"], each["allowedBy"]["name"]) for each in status["allowedServiceAccounts"]] == [
        ("mighty", "privileged")
    ]
    status = await review(ann, plural, template(PRIVILEGED, serviceAccountName="mighty"))
    assert [each["name"] for each in status["allowedServiceAccounts"]] == ["mighty"]
    assert "allowedServiceAccounts" not in await review(ann, plural, template(PRIVILEGED))
    unknown = await review(ann, plural, {**template(), "serviceAccountNames": ["nobody"]})
    assert (unknown["code"], unknown["message"]) == (400, 'serviceaccounts "nobody" not found')
    many = await review(ann, plural, {**template(), "serviceAccountNames": [f"a{number}" for number in range(101)]})
    assert many["code"] == 400


async def test_viewer_reviews_nobody(server: ApiServer, red: str, tmp_path: Path) -> None:
    async with user_session(server, tmp_path, "eve") as eve:
        for plural in ("podsecuritypolicysubjectreviews", "podsecuritypolicyreviews"):
            assert (await review(eve, plural, {**template(), "user": "ann"}))["code"] == 403


# --- IDs of namespaces ------------------------------------------------------------------------------------------------


async def test_namespace_that_lost_its_ids_gets_others(api_client: UntypedClient) -> None:
    """Its old block may belong to another namespace by then."""
    prefix = "openshift.io/sa.scc."
    keys = [f"{prefix}{key}" for key in ("uid-range", "supplemental-groups", "mcs")]
    created = await api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "lost"}})
    before = created["metadata"]["annotations"]
    path = "/api/v1/namespaces/lost"
    await api_client.request("PATCH", path, {"metadata": {"annotations": dict.fromkeys(keys)}})
    after = await api_client.wait_until(path, lambda obj: keys[0] in obj["metadata"].get("annotations", {}))
    others = await api_client.request("GET", "/api/v1/namespaces")
    for key in keys:
        assert after["metadata"]["annotations"][key] != before[key]
        given = [namespace["metadata"]["annotations"][key] for namespace in others["items"]]
        assert len(set(given)) == len(given)


# --- without SCCs -----------------------------------------------------------------------------------------------------


async def test_master_without_sccs_warns_and_lets_editors_own_nodes(tmp_path: Path) -> None:
    server = ApiServer(tmp_path, "--security-context-constraints", "false")
    server.start()
    try:
        assert "security context constraints are off: whoever may create a pod in a project can own its node" in (
            server.log()
        )
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            api_client = UntypedClient(client)
            await api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "red"}})
            await bind(api_client, "ann", "edit", kind="User", name="ann")
        async with user_session(server, tmp_path, "ann") as ann:
            pod = {"metadata": {"name": "p"}, "spec": template(PRIVILEGED)["template"]["spec"]}
            async with ann.post("/api/v1/namespaces/red/pods", json=pod) as response:
                assert response.status == 201, await response.text()
                created = await response.json()
            assert "openshift.io/scc" not in created["metadata"].get("annotations", {})
            assert created["spec"]["containers"][0]["securityContext"] == {"privileged": True}
    finally:
        server.stop()
