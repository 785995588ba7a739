"""RBAC over HTTP, for users by certificate, by token and by impersonation."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session

Kubectl = Callable[..., str]

KUBECTL = shutil.which("kubectl") or "kubectl"
KEY = """\
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: blue, annotations: {kubernetes.io/service-account.name: keeper}}
type: kubernetes.io/service-account-token
"""
POSES = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: poses}
rules: [{apiGroups: [""], resources: [users], resourceNames: [bob], verbs: [impersonate]}]
"""
"""`kubectl create clusterrole` takes `users` for those of user.openshift.io."""

ROBOT = "system:serviceaccount:red:robot"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture(scope="module")
def kubectl(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    home = str(tmp_path_factory.mktemp("home"))

    def run(*words: str, code: int = 0) -> str:
        command = [KUBECTL, f"--kubeconfig={server.kubeconfig}", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "HOME": home}
        )
        assert done.returncode == code, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    for project in ("red", "blue"):
        run("create", "namespace", project)
    run("-n", "red", "create", "rolebinding", "bobs", "--clusterrole=edit", "--user=bob")
    run("-n", "red", "create", "rolebinding", "amys", "--clusterrole=admin", "--user=amy")
    return run


@pytest.fixture
async def bob(server: ApiServer, kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "bob", "dev") as session:
        yield session


async def test_user_with_a_certificate_has_the_permissions_of_its_roles(bob: aiohttp.ClientSession) -> None:
    for path, code in (
        ("/apis", 200),
        ("/metrics", 403),
        ("/api/v1/namespaces/red", 200),
        ("/api/v1/namespaces/blue", 403),
        ("/api/v1/namespaces", 403),
        ("/api/v1/namespaces/red/pods?watch=1&timeoutSeconds=1", 200),
        ("/api/v1/namespaces/red/secrets", 200),
        ("/api/v1/namespaces/blue/secrets", 403),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/red/roles", 403),
    ):
        async with bob.get(path) as answer:
            assert answer.status == code, path
    async with bob.get("/api/v1/namespaces/blue/pods") as answer:
        refused = await answer.json()
    assert (refused["reason"], refused["details"]) == ("Forbidden", {"kind": "pods"})
    assert refused["message"] == (
        'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "blue"'
    )


async def test_new_role_binding_is_effective_at_once(bob: aiohttp.ClientSession, kubectl: Kubectl) -> None:
    async def status() -> int:
        async with bob.get("/api/v1/nodes") as answer:
            return answer.status

    assert await status() == 403
    kubectl("create", "clusterrolebinding", "devs", "--clusterrole=sees-nodes", "--group=dev")
    async with bob.get("/api/v1/nodes") as answer:
        assert 'clusterrole.rbac.authorization.k8s.io "sees-nodes" not found' in (await answer.json())["message"]
    kubectl("create", "clusterrole", "sees-nodes", "--verb=list", "--resource=nodes")
    assert await status() == 200
    kubectl("delete", "clusterrolebinding/devs", "clusterrole/sees-nodes")
    assert await status() == 403


async def test_field_selector_by_name_is_authorized_as_a_resource_name(
    bob: aiohttp.ClientSession, kubectl: Kubectl
) -> None:
    kubectl("-n", "blue", "create", "role", "one", "--verb=list,watch", "--resource=configmaps", "--resource-name=a")
    kubectl("-n", "blue", "create", "rolebinding", "one", "--role=one", "--user=bob")
    path = "/api/v1/namespaces/blue/configmaps"
    named = "?fieldSelector=metadata.name%3D"
    for selector, code in ((f"{named}a", 200), (f"{named}b", 403), ("", 403)):
        async with bob.get(path + selector) as answer:
            assert answer.status == code


async def test_apply_of_a_missing_object_needs_create_permission(bob: aiohttp.ClientSession, kubectl: Kubectl) -> None:
    kubectl("-n", "blue", "create", "role", "patches", "--verb=patch", "--resource=secrets")
    kubectl("-n", "blue", "create", "rolebinding", "patches", "--role=patches", "--user=bob")
    path = "/api/v1/namespaces/blue/secrets/applied?fieldManager=bob"
    kind = {"Content-Type": "application/apply-patch+yaml"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "applied"}}
    async with bob.patch(path, json=body, headers=kind) as answer:
        assert (answer.status, "cannot create" in (await answer.json())["message"]) == (403, True)
    kubectl("-n", "blue", "create", "secret", "generic", "applied")
    async with bob.patch(path, json=body, headers=kind) as answer:
        assert answer.status == 200


async def test_update_of_a_missing_lease_needs_create_permission(bob: aiohttp.ClientSession, kubectl: Kubectl) -> None:
    kubectl("-n", "blue", "create", "role", "renews", "--verb=update", "--resource=leases.coordination.k8s.io")
    kubectl("-n", "blue", "create", "rolebinding", "renews", "--role=renews", "--user=bob")
    path = "/apis/coordination.k8s.io/v1/namespaces/blue/leases/leader"
    body = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "bob"}}
    async with bob.put(path, json=body) as answer:
        assert (answer.status, "cannot create" in (await answer.json())["message"]) == (403, True)
    kubectl("-n", "blue", "create", "role", "leads", "--verb=create", "--resource=leases.coordination.k8s.io")
    kubectl("-n", "blue", "create", "rolebinding", "leads", "--role=leads", "--user=bob")
    for code in (201, 200):
        async with bob.put(path, json=body) as answer:
            assert answer.status == code


async def test_access_reviews_report_the_reason(
    bob: aiohttp.ClientSession, server: ApiServer, kubectl: Kubectl
) -> None:
    async def review_access(spec: dict[str, object]) -> dict[str, object]:
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        async with bob.post(path, json={"spec": spec}) as answer:
            assert answer.status == 201
            return (await answer.json())["status"]  # type: ignore[no-any-return]

    yes = await review_access({"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "red"}})
    assert yes == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "bobs/red" of ClusterRole "edit" to User "bob"',
    }
    assert await review_access({"resourceAttributes": {"verb": "create", "resource": "pods"}}) == {"allowed": False}
    assert (await review_access({"nonResourceAttributes": {"verb": "get", "path": "/apis/apps"}}))["allowed"]
    async with bob.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json={"spec": {}}) as answer:
        assert answer.status == 403
    rules = kubectl("--as=bob", "auth", "can-i", "--list", "-n", "red")
    assert "deployments.apps/scale" in rules
    assert "selfsubjectreviews.authentication.k8s.io" in rules
    assert "deployments.apps/scale" not in kubectl("--as=bob", "auth", "can-i", "--list", "-n", "blue")


def test_role_escalation_is_rejected(kubectl: Kubectl) -> None:
    amy = ("--as=amy", "-n", "red")
    refused = kubectl(*amy, "create", "role", "nodes", "--verb=get", "--resource=nodes", code=1)
    assert 'user "amy" (groups=["system:authenticated"]) is attempting to grant RBAC permissions' in refused
    assert '{APIGroups:[""], Resources:["nodes"], Verbs:["get"]}' in refused
    refused = kubectl(*amy, "create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=amy", code=1)
    assert "not currently held" in refused
    kubectl(*amy, "create", "rolebinding", "eves", "--clusterrole=view", "--user=eve")
    assert kubectl("--as=eve", "-n", "red", "get", "pods") == "No resources found in red namespace.\n"
    patched = ("patch", "clusterrole", "view", "--type=merge", "-p", '{"rules":[]}')
    assert "cannot patch resource" in kubectl(*amy, *patched, code=1)


def test_impersonation_needs_permission(kubectl: Kubectl, server: ApiServer, tmp_path: Path) -> None:
    whoami = kubectl("--as=bob", "--as-group=dev", "--as-uid=7", "auth", "whoami", "-o", "json")
    assert json.loads(whoami)["status"]["userInfo"] == {
        "username": "bob",
        "uid": "7",
        "groups": ["dev", "system:authenticated"],
    }
    kubectl("-n", "red", "create", "serviceaccount", "robot")
    token = kubectl("-n", "red", "create", "token", "robot").strip()
    robot = ("--kubeconfig=/dev/null", f"--server={server.url}", "--insecure-skip-tls-verify", f"--token={token}")
    kubectl("get", "pods")  # kubectl remembers discovery, which the rejected client may not read.
    refused = kubectl(*robot, "--as=bob", "get", "pods", code=1)
    assert f'users "bob" is forbidden: User "{ROBOT}" cannot impersonate resource "users" in API group ""' in refused
    manifest = tmp_path / "poses.yaml"
    manifest.write_text(POSES)
    kubectl("create", "-f", str(manifest))
    kubectl("create", "clusterrolebinding", "poses", "--clusterrole=poses", "--serviceaccount=red:robot")
    assert "bob" in kubectl(*robot, "--as=bob", "auth", "whoami")
    for more in ("--as-group=system:masters", "--as-uid=7"):
        assert "cannot impersonate" in kubectl(*robot, "--as=bob", more, "get", "pods", code=1)
    assert "cannot impersonate" in kubectl(*robot, "--as=eve", "get", "pods", code=1)


def test_default_cluster_roles_are_restored(kubectl: Kubectl, server: ApiServer) -> None:
    kubectl("delete", "clusterrole", "system:discovery")
    kubectl("wait", "--for=create", "clusterrole/system:discovery", "--timeout=10s")
    label = "rbac.authorization.k8s.io/aggregate-to-view=true"
    kubectl("create", "clusterrole", "sees-lanes", "--verb=get", "--resource=netnamespaces.network.openshift.io")
    kubectl("label", "clusterrole", "sees-lanes", label)
    for role in ("view", "edit", "admin"):
        path = '--for=jsonpath={.rules[?(@.resources[0]=="netnamespaces")].verbs[0]}=get'
        kubectl("wait", path, f"clusterrole/{role}", "--timeout=10s")


def test_token_secret_authenticates_its_service_account(kubectl: Kubectl, server: ApiServer, tmp_path: Path) -> None:
    kubectl("-n", "blue", "create", "serviceaccount", "keeper")
    manifest = tmp_path / "secret.yaml"
    manifest.write_text(KEY)
    kubectl("create", "-f", str(manifest))
    kubectl("-n", "blue", "wait", "--for=jsonpath={.data.token}", "secret/key", "--timeout=10s")
    data = json.loads(kubectl("-n", "blue", "get", "secret", "key", "-o", "json"))["data"]
    token = base64.b64decode(data["token"]).decode()
    keeper = ("--kubeconfig=/dev/null", f"--server={server.url}", "--insecure-skip-tls-verify", f"--token={token}")
    assert "system:serviceaccount:blue:keeper" in kubectl(*keeper, "auth", "whoami")
    kubectl("-n", "blue", "delete", "secret", "key")
    assert "Unauthorized" in kubectl(*keeper, "get", "pods", code=1)


async def test_service_account_issuer_keys_are_published(bob: aiohttp.ClientSession, server: ApiServer) -> None:
    async with bob.get("/.well-known/openid-configuration") as answer:
        actual = await answer.json()
    assert actual["jwks_uri"] == f"{server.url}/openid/v1/jwks"
    assert actual["issuer"] == "https://kubernetes.default.svc.cluster.local"
    async with bob.get("/openid/v1/jwks") as answer:
        assert [key["alg"] for key in (await answer.json())["keys"]] == actual["id_token_signing_alg_values_supported"]
