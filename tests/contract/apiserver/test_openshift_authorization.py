"""authorization.openshift.io over HTTP: the requests of `oc policy`, `oc adm policy`, `oc status`, `oc auth can-i`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.protobuf_encoder import encoded
from tests.testbed.apiserver.users import user_session

GROUP = "authorization.openshift.io/v1"
RBAC_ROOT, ROOT = "/apis/rbac.authorization.k8s.io/v1", f"/apis/{GROUP}"
RBAC_BINDINGS, BINDINGS = f"{RBAC_ROOT}/namespaces/red/rolebindings", f"{ROOT}/namespaces/red/rolebindings"
RESTRICTIONS = f"{ROOT}/namespaces/red/rolebindingrestrictions"

Session = aiohttp.ClientSession


class People(NamedTuple):
    """Sessions: of the administrator of the cluster, of that of the project red, and of its editor."""

    root: Session
    amy: Session
    bob: Session


async def send(session: Session, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    async with session.request(method, path, json=body, **more) as answer:
        return answer.status, await answer.json()


def binding(name: str, role: str, *users: str) -> dict[str, Any]:
    """Return a RoleBinding as `oc adm policy add-role-to-user` creates it."""
    group = "rbac.authorization.k8s.io"
    return {
        "kind": "RoleBinding",
        "apiVersion": f"{group}/v1",
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user} for user in users],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
    }


def review(kind: str, verb: str = "get", resource: str = "pods", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "apiVersion": GROUP, "verb": verb, "resource": resource, "resourceAPIGroup": "", **more}


@pytest.fixture(scope="module")
def projects(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the projects, with the administrator and the editor of red."""

    async def make() -> None:
        async with user_session(server, tmp_path_factory.mktemp("users"), "root", "system:masters") as root:
            for project in ("red", "blue", "green"):
                namespace = {"metadata": {"name": project}}
                assert (await send(root, "POST", "/api/v1/namespaces", namespace))[0] == 201
            for name, role in (("amy", "admin"), ("bob", "edit")):
                assert (await send(root, "POST", RBAC_BINDINGS, binding(name, role, name)))[0] == 201

    asyncio.run(make())


@pytest.fixture
async def people(server: ApiServer, projects: None, tmp_path: Path) -> AsyncIterator[People]:
    async with (
        user_session(server, tmp_path, "root", "system:masters") as root,
        user_session(server, tmp_path, "amy", "dev") as amy,
        user_session(server, tmp_path, "bob", "dev") as bob,
    ):
        yield People(root, amy, bob)


async def may(session: Session, verb: str, resource: str, namespace: str = "red") -> bool:
    """POST the review of `oc auth can-i`."""
    access = {"verb": verb, "resource": resource, "namespace": namespace}
    body = {"spec": {"resourceAttributes": access}}
    status, answer = await send(session, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert status == 201
    return bool(answer["status"]["allowed"])


async def test_add_and_remove_a_role_of_a_user(people: People, server: ApiServer, tmp_path: Path) -> None:
    for _ in range(2):  # oc lists them twice: by role, then by name
        status, listed = await send(people.amy, "GET", RBAC_BINDINGS)
        assert (status, len(listed["items"])) == (200, 2)
    async with user_session(server, tmp_path, "eve") as eve:
        assert not await may(eve, "get", "pods")
        assert (await send(people.amy, "POST", RBAC_BINDINGS, binding("view", "view", "eve")))[0] == 201
        assert await may(eve, "get", "pods")
        assert not await may(eve, "get", "pods", "blue")
        assert (await send(people.amy, "POST", RBAC_BINDINGS, binding("view", "edit", "eve")))[0] == 409
        assert (await send(people.amy, "POST", RBAC_BINDINGS, binding("view-0", "edit", "eve")))[0] == 201
        for name in ("view", "view-0"):
            assert (await send(people.amy, "DELETE", f"{RBAC_BINDINGS}/{name}"))[0] == 200
        assert not await may(eve, "get", "pods")


async def test_binding_is_the_same_object_in_both_groups(people: People, server: ApiServer, tmp_path: Path) -> None:
    body = {
        "kind": "RoleBinding",
        "apiVersion": GROUP,
        "metadata": {"name": "viewers"},
        "userNames": ["eve", "system:serviceaccount:blue:robot"],
        "groupNames": ["ops"],
        "roleRef": {"name": "view"},
    }
    async with user_session(server, tmp_path, "eve") as eve:
        status, made = await send(people.amy, "POST", BINDINGS, body)
        assert (status, made["kind"], made["apiVersion"]) == (201, "RoleBinding", GROUP)
        assert await may(eve, "get", "pods")
        status, stored = await send(people.amy, "GET", f"{RBAC_BINDINGS}/viewers")
        assert stored["metadata"]["uid"] == made["metadata"]["uid"]
        assert stored["subjects"] == [
            {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"},
            {"kind": "ServiceAccount", "name": "robot", "namespace": "blue"},
            {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "ops"},
        ]
        stored["subjects"] = [{"kind": "User", "name": "amy"}]
        assert (await send(people.amy, "PUT", f"{RBAC_BINDINGS}/viewers", stored))[0] == 200
        status, shown = await send(people.amy, "GET", f"{BINDINGS}/viewers")
        assert (shown["userNames"], shown.get("groupNames")) == (["amy"], None)
        assert shown["subjects"] == [{"kind": "User", "name": "amy"}]
        assert not await may(eve, "get", "pods")
        patch = {"subjects": [{"kind": "User", "name": "amy"}, {"kind": "User", "name": "eve"}]}
        headers = {"Content-Type": "application/merge-patch+json"}
        status, patched = await send(people.amy, "PATCH", f"{BINDINGS}/viewers", patch, headers=headers)
        assert (status, patched["userNames"]) == (200, ["amy", "eve"])
        assert await may(eve, "get", "pods")
        assert (await send(people.amy, "DELETE", f"{BINDINGS}/viewers"))[0] == 200
        assert (await send(people.amy, "GET", f"{RBAC_BINDINGS}/viewers"))[0] == 404


async def test_legacy_forms_grant_only_what_their_writer_holds(people: People) -> None:
    for path, body in (
        (BINDINGS, {"metadata": {"name": "all"}, "userNames": ["amy"], "roleRef": {"name": "cluster-admin"}}),
        (
            f"{ROOT}/namespaces/red/roles",
            {"metadata": {"name": "all"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]},
        ),
    ):
        status, refused = await send(people.amy, "POST", path, body)
        assert (status, refused["reason"]) == (403, "Forbidden"), path
        assert "not currently held" in refused["message"]
        assert refused["details"]["group"] == "authorization.openshift.io"
        assert (await send(people.bob, "POST", path, body))[0] == 403
    role = {"metadata": {"name": "reader"}, "rules": [{"verbs": ["get"], "resources": ["pods"]}]}
    assert (await send(people.amy, "POST", f"{ROOT}/namespaces/red/roles", role))[0] == 201
    role["rules"] = [{"verbs": ["get"], "resources": ["nodes"]}]
    assert (await send(people.amy, "PUT", f"{ROOT}/namespaces/red/roles/reader", role))[0] == 403
    assert (await send(people.amy, "DELETE", f"{ROOT}/namespaces/red/roles/reader"))[0] == 200
    assert (await send(people.amy, "POST", f"{ROOT}/clusterroles", role))[0] == 403


async def test_protobuf_bodies_are_of_the_legacy_form(people: People) -> None:
    body = {
        "kind": "RoleBinding",
        "apiVersion": GROUP,
        "metadata": {"name": "binary"},
        "userNames": ["eve"],
        "roleRef": {"name": "view"},
    }
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    async with people.amy.post(BINDINGS, data=encoded(body), headers=headers) as answer:
        assert (answer.status, (await answer.json())["subjects"]) == (201, [{"kind": "User", "name": "eve"}])
    assert (await send(people.amy, "DELETE", f"{BINDINGS}/binary"))[0] == 200


async def test_who_can_names_users_and_groups(people: People) -> None:
    path = f"{ROOT}/namespaces/red/localresourceaccessreviews"
    account = {"kind": "ServiceAccount", "name": "robot", "namespace": "blue"}
    extra = {**binding("robots", "edit"), "subjects": [account]}
    missing = binding("gone", "gone", "eve")
    for each in (extra, missing):
        assert (await send(people.root, "POST", RBAC_BINDINGS, each))[0] == 201
    body = review("LocalResourceAccessReview", "delete", namespace="blue")
    status, answer = await send(people.amy, "POST", path, body)
    assert (status, answer["kind"], answer["apiVersion"]) == (201, "ResourceAccessReviewResponse", GROUP)
    assert answer["namespace"] == "red"
    assert {"amy", "bob", "system:admin", "system:serviceaccount:blue:robot"} <= {*answer["users"]}
    assert "eve" not in answer["users"]
    assert {"system:cluster-admins", "system:masters"} <= {*answer["groups"]}
    assert 'clusterrole.rbac.authorization.k8s.io "gone" not found' in answer["evalutionError"]
    for name in ("robots", "gone"):
        assert (await send(people.root, "DELETE", f"{RBAC_BINDINGS}/{name}"))[0] == 200
    status, answer = await send(people.amy, "POST", path, review("LocalResourceAccessReview", "create", "pods/exec"))
    assert {"amy", "bob"} <= {*answer["users"]}
    assert "evalutionError" not in answer


async def test_who_can_in_the_cluster_needs_rights_there(people: People) -> None:
    path, body = f"{ROOT}/resourceaccessreviews", review("ResourceAccessReview", "delete", "nodes")
    assert (await send(people.amy, "POST", path, body))[0] == 403
    assert (await send(people.bob, "POST", f"{ROOT}/namespaces/red/localresourceaccessreviews", body))[0] == 403
    assert (await send(people.amy, "POST", f"{ROOT}/namespaces/blue/localresourceaccessreviews", body))[0] == 403
    status, answer = await send(people.root, "POST", path, body)
    assert (status, answer["users"]) == (201, ["system:admin"])
    assert answer["groups"] == ["system:cluster-admins", "system:masters"]
    status, answer = await send(people.root, "POST", path, {**body, "namespace": "red", "resource": "pods"})
    assert (answer["namespace"], {"amy", "bob"} <= {*answer["users"]}) == ("red", True)
    status, refused = await send(people.root, "POST", path, {**body, "verb": "", "resource": ""})
    assert (status, [cause["field"] for cause in refused["details"]["causes"]]) == (422, ["verb", "resource"])


async def test_right_to_review_the_cluster_is_none_for_a_namespace(
    people: People, server: ApiServer, tmp_path: Path
) -> None:
    """The review of the whole cluster needs the right to the local review in the namespace that its body names."""
    rules = [{"verbs": ["create"], "apiGroups": ["authorization.openshift.io"],
              "resources": ["resourceaccessreviews", "subjectaccessreviews"]}]  # fmt: skip
    role = {"metadata": {"name": "reviews"}, "rules": rules}
    assert (await send(people.root, "POST", f"{RBAC_ROOT}/clusterroles", role))[0] == 201
    bound = {**binding("reviews", "reviews", "zoe"), "kind": "ClusterRoleBinding"}
    assert (await send(people.root, "POST", f"{RBAC_ROOT}/clusterrolebindings", bound))[0] == 201
    async with user_session(server, tmp_path, "zoe") as zoe:
        for kind, plural in (
            ("ResourceAccessReview", "resourceaccessreviews"),
            ("SubjectAccessReview", "subjectaccessreviews"),
        ):
            for namespace in ("red", ""):
                status, refused = await send(zoe, "POST", f"{ROOT}/{plural}", review(kind, namespace=namespace))
                assert (status, f"local{plural}" in refused["message"]) == (403, True)


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        ({"user": "bob"}, True),
        ({"user": "eve"}, False),
        ({"user": "eve", "groups": ["system:masters"]}, True),
        ({"groups": ["ops"]}, False),
        ({}, True),
    ],
)
async def test_subject_access_review(people: People, subject: dict[str, Any], allowed: bool) -> None:
    body = review("SubjectAccessReview", "create", namespace="red", scopes=None, **subject)
    status, answer = await send(people.root, "POST", f"{ROOT}/subjectaccessreviews", body)
    assert (status, answer["kind"], answer["namespace"]) == (201, "SubjectAccessReviewResponse", "red")
    assert answer["allowed"] is allowed
    local = {**body, "kind": "LocalSubjectAccessReview", "namespace": "blue"}
    status, answer = await send(people.amy, "POST", f"{ROOT}/namespaces/red/localsubjectaccessreviews", local)
    assert (status, answer["namespace"], answer["allowed"]) == (201, "red", allowed)


LOCAL_REVIEWS = f"{ROOT}/namespaces/red/localsubjectaccessreviews"


async def test_subject_access_review_names_the_binding_and_is_bounded(people: People) -> None:
    local = review("LocalSubjectAccessReview", user="bob")
    _, answer = await send(people.amy, "POST", LOCAL_REVIEWS, local)
    assert answer["reason"] == 'RBAC: allowed by RoleBinding "bob/red" of ClusterRole "edit" to User "bob"'
    status, refused = await send(people.amy, "POST", LOCAL_REVIEWS, {**local, "groups": [str(n) for n in range(1001)]})
    assert (status, refused["details"]["causes"][0]["field"]) == (422, "groups")
    of_kubernetes = {"resourceAttributes": {"namespace": "red", "verb": "get", "resource": "pods"}, "user": "bob"}
    body = {"spec": {**of_kubernetes, "groups": [str(n) for n in range(1001)]}}
    path = "/apis/authorization.k8s.io/v1/namespaces/red/localsubjectaccessreviews"
    body["metadata"] = {"namespace": "red"}
    assert (await send(people.amy, "POST", path, body))[0] == 422
    status, refused = await send(people.amy, "POST", LOCAL_REVIEWS, {**local, "scopes": ["user:full"] * 101})
    assert (status, refused["details"]["causes"][0]["field"]) == (422, "scopes")
    on_path = {**local, "isNonResourceURL": True, "path": "/metrics"}
    assert (await send(people.amy, "POST", LOCAL_REVIEWS, on_path))[0] == 422
    path_review: dict[str, Any] = {"isNonResourceURL": True, "path": "/metrics", "resource": "", "user": "bob"}
    body = review("SubjectAccessReview", **path_review)
    assert (await send(people.root, "POST", f"{ROOT}/subjectaccessreviews", body))[1]["allowed"] is False
    body = review("SubjectAccessReview", **{**path_review, "groups": ["system:monitoring"]})
    assert (await send(people.root, "POST", f"{ROOT}/subjectaccessreviews", body))[1]["allowed"] is True


async def test_rules_reviews(people: People) -> None:
    path = f"{ROOT}/namespaces/red"
    body = {"kind": "SelfSubjectRulesReview", "apiVersion": GROUP, "spec": {"scopes": None}}
    status, answer = await send(people.bob, "POST", f"{path}/selfsubjectrulesreviews", body)
    assert (status, answer["kind"]) == (201, "SelfSubjectRulesReview")
    assert any("deployments" in rule.get("resources", ()) for rule in answer["status"]["rules"])
    status, answer = await send(people.bob, "POST", f"{ROOT}/namespaces/blue/selfsubjectrulesreviews", body)
    assert not any("deployments" in rule.get("resources", ()) for rule in answer["status"]["rules"])
    body = {"kind": "SubjectRulesReview", "apiVersion": GROUP, "spec": {"user": "eve", "groups": []}}
    status, answer = await send(people.amy, "POST", f"{path}/subjectrulesreviews", body)
    assert (status, answer["status"]["rules"]) == (201, [])
    assert (await send(people.bob, "POST", f"{path}/subjectrulesreviews", body))[0] == 403
    assert (await send(people.amy, "POST", f"{path}/subjectrulesreviews", {**body, "spec": {}}))[0] == 422


async def test_restrictions_of_a_project_limit_bindings_of_both_groups(people: People) -> None:
    spec = {"userrestriction": {"users": ["amy", "bob"], "groups": None, "labels": None}}
    body = {"metadata": {"name": "ours"}, "spec": spec}
    assert (await send(people.amy, "POST", RESTRICTIONS, body))[0] == 403
    status, made = await send(people.root, "POST", RESTRICTIONS, body)
    assert (status, made["spec"]) == (201, {"userrestriction": {"users": ["amy", "bob"]}})
    legacy = {"metadata": {"name": "x"}, "userNames": ["eve"], "roleRef": {"name": "view"}}
    for path, new in ((RBAC_BINDINGS, binding("x", "view", "eve")), (BINDINGS, legacy)):
        status, refused = await send(people.amy, "POST", path, new)
        assert status == 403
        assert 'rolebindings to User "eve" are not allowed in project "red"' in refused["message"]
    assert (await send(people.amy, "POST", BINDINGS, {**legacy, "userNames": ["bob"]}))[0] == 201
    assert (await send(people.root, "DELETE", f"{RESTRICTIONS}/ours"))[0] == 200
    assert (await send(people.amy, "PUT", f"{BINDINGS}/x", legacy))[0] == 200
    assert (await send(people.amy, "DELETE", f"{BINDINGS}/x"))[0] == 200


async def test_quota_counts_roles_of_both_groups(people: People) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/roles.rbac.authorization.k8s.io": "1"}}}
    assert (await send(people.root, "POST", "/api/v1/namespaces/green/resourcequotas", quota))[0] == 201
    for root, name, code in ((ROOT, "a", 201), (ROOT, "b", 403), (RBAC_ROOT, "c", 403)):
        role = {"metadata": {"name": name}, "rules": []}
        assert (await send(people.root, "POST", f"{root}/namespaces/green/roles", role))[0] == code, name


async def test_sudoer_acts_as_the_administrator(people: People, server: ApiServer, tmp_path: Path) -> None:
    bound = {**binding("sudoers", "sudoer", "sam"), "kind": "ClusterRoleBinding"}
    assert (await send(people.root, "POST", f"{RBAC_ROOT}/clusterrolebindings", bound))[0] == 201
    async with user_session(server, tmp_path, "sam") as sam:
        assert (await send(sam, "GET", "/api/v1/nodes"))[0] == 403
        assert (await send(sam, "GET", "/api/v1/nodes", headers={"Impersonate-User": "system:admin"}))[0] == 200
        assert (await send(sam, "GET", "/api/v1/nodes", headers={"Impersonate-User": "amy"}))[0] == 403
    assert (await send(people.amy, "GET", "/api/v1/nodes", headers={"Impersonate-User": "system:admin"}))[0] == 403


async def test_editor_acts_as_the_service_accounts_of_the_project(people: People) -> None:
    own, foreign = ({"Impersonate-User": f"system:serviceaccount:{project}:default"} for project in ("red", "blue"))
    who = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    status, answer = await send(people.bob, "POST", path, who, headers=own)
    assert (status, answer["status"]["userInfo"]["username"]) == (201, own["Impersonate-User"])
    assert (await send(people.bob, "GET", "/api/v1/namespaces/red/pods", headers=own))[0] == 403
    assert (await send(people.bob, "POST", path, who, headers=foreign))[0] == 403


def test_kubectl_resolves_short_names_to_kubernetes(projects: None, server: ApiServer, tmp_path: Path) -> None:
    def kubectl(*words: str) -> str:
        command = [shutil.which("kubectl") or "kubectl", f"--kubeconfig={server.kubeconfig}", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "HOME": str(tmp_path)}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert kubectl("get", "clusterroles", "view", "-o", "name") == "clusterrole.rbac.authorization.k8s.io/view\n"
    legacy = "rolebindings.authorization.openshift.io"
    header, row = kubectl("-n", "red", "get", legacy, "bob", "-o", "wide").splitlines()
    assert header.split()[:4] == ["NAME", "ROLE", "AGE", "USERS"]
    assert row.split()[:2] == ["bob", "ClusterRole/edit"]
