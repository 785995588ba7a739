"""Projects as oc uses them: the namespaces that a user may read, and project requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session

Kubectl = Callable[..., str]

PROJECTS = "/apis/project.openshift.io/v1/projects"
REQUESTS = "/apis/project.openshift.io/v1/projectrequests"
PEOPLE = "system:authenticated:oauth"
"""The group of those who may ask for projects."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"), "--self-provisioning=true")
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture(scope="module")
def kubectl(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    home = str(tmp_path_factory.mktemp("home"))

    def run(*words: str, code: int = 0) -> str:
        command = [shutil.which("kubectl") or "kubectl", f"--kubeconfig={server.kubeconfig}", *words]
        environment = {**os.environ, "HOME": home}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
        assert done.returncode == code, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    run("create", "namespace", "foreign")
    return run


@pytest.fixture
async def bob(server: ApiServer, kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "bob", PEOPLE) as session:
        yield session


async def request_project(name: str, session: aiohttp.ClientSession, **more: str) -> tuple[int, dict[str, Any]]:
    """POST projectrequests, as `oc new-project` does."""
    body = {"kind": "ProjectRequest", "apiVersion": "project.openshift.io/v1", "metadata": {"name": name}, **more}
    async with session.post(REQUESTS, json=body) as answer:
        return answer.status, await answer.json()


async def names(session: aiohttp.ClientSession) -> list[str]:
    async with session.get(PROJECTS) as answer:
        assert answer.status == 200
        return [project["metadata"]["name"] for project in (await answer.json())["items"]]


async def test_project_request_makes_the_requester_its_administrator(
    bob: aiohttp.ClientSession, kubectl: Kubectl
) -> None:
    async with bob.get(REQUESTS) as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "Success")
    assert await names(bob) == []
    status, created = await request_project("shop", bob, displayName="The Shop", description="Sells things")
    assert (status, created["kind"], created["apiVersion"]) == (201, "Project", "project.openshift.io/v1")
    assert created["metadata"]["labels"]["pod-security.kubernetes.io/warn"] == "restricted"
    given = {key.partition("/")[2]: value for key, value in created["metadata"]["annotations"].items()}
    assert {key: given.pop(f"sa.scc.{key}") for key in ("uid-range", "supplemental-groups", "mcs")}.keys()
    assert given.pop("MinimallySufficientPodSecurityStandard") == "restricted"
    assert given == {"display-name": "The Shop", "description": "Sells things", "requester": "bob"}
    assert created["status"] == {"phase": "Active"}
    assert await names(bob) == ["shop"]
    async with bob.get(f"{PROJECTS}/shop") as answer:
        assert (await answer.json())["metadata"] == created["metadata"]
    for path, code in (("shop", 200), ("foreign", 403), ("nowhere", 403)):
        async with bob.get(f"{PROJECTS}/{path}") as answer:
            assert answer.status == code
    async with bob.post("/api/v1/namespaces/shop/configmaps", json={"metadata": {"name": "a"}}) as answer:
        assert answer.status == 201
    assert kubectl("get", "projects", "shop").splitlines()[1].split() == ["shop", "The", "Shop", "Active"]
    assert kubectl("get", "namespace", "shop", "-o", "name").strip() == "namespace/shop"
    assert (await request_project("shop", bob))[0] == 409


async def test_project_request_with_a_reserved_or_invalid_name_is_rejected(bob: aiohttp.ClientSession) -> None:
    status, refused = await request_project("kube-mine", bob)
    assert (status, refused["message"].partition(": ")[2]) == (403, 'cannot request a project starting with "kube-"')
    status, refused = await request_project("Bad_Name", bob)
    assert (status, refused["details"]["kind"]) == (422, "Project")


async def test_project_request_without_permission_is_rejected(
    server: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    async with user_session(server, tmp_path, "eve") as eve:
        async with eve.get(REQUESTS) as answer:
            refused = await answer.json()
            assert (answer.status, refused["reason"]) == (403, "Forbidden")
        assert refused["message"] == "You may not request a new project via this API."
        assert (await request_project("mine", eve))[0] == 403
        assert await names(eve) == []
        assert "foreign" in kubectl("get", "projects", "-o", "name")
        kubectl("-n", "foreign", "create", "rolebinding", "eves", "--clusterrole=view", "--user=eve")
        assert await names(eve) == ["foreign"]
        async with eve.get(f"{PROJECTS}?limit=1") as answer:
            assert "continue" not in (await answer.json())["metadata"]
        for verb in ("delete", "put"):
            async with eve.request(verb, f"{PROJECTS}/foreign", json={}) as answer:
                assert answer.status == 403


async def test_project_watch_shows_only_readable_projects(bob: aiohttp.ClientSession, kubectl: Kubectl) -> None:
    await request_project("early", bob)
    seen: list[str] = []
    async with bob.get(f"{PROJECTS}?watch=1&timeoutSeconds=30&resourceVersion=0") as answer, asyncio.timeout(10):
        async for line in answer.content:
            event = json.loads(line)
            assert (event["type"], event["object"]["kind"]) == ("ADDED", "Project")
            seen.append(event["object"]["metadata"]["name"])
            if seen[-1] == "early":
                await asyncio.to_thread(kubectl, "create", "namespace", "unseen")
                await request_project("watched", bob)
            if seen[-1] == "watched":
                break
    assert "early" in seen
    assert not {"foreign", "unseen", "default"} & set(seen)


async def test_requested_project_has_limits_for_containers_and_a_created_namespace_has_none(
    bob: aiohttp.ClientSession, kubectl: Kubectl
) -> None:
    assert (await request_project("limited", bob))[0] == 201
    container = {"name": "c", "image": "registry.example.com/i"}
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
    async with bob.post("/api/v1/namespaces/limited/pods", json=pod) as answer:
        created = await answer.json()
        assert answer.status == 201, created
    resources = created["spec"]["containers"][0]["resources"]
    assert resources["limits"].keys() == resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}
    huge = {"limits": {"memory": "1Ti"}}
    for where, code in (("limited", 403), ("unlimited", 201)):
        if where == "unlimited":
            kubectl("create", "namespace", where)
            kubectl("-n", where, "create", "rolebinding", "bobs", "--clusterrole=admin", "--user=bob")
            assert kubectl("-n", where, "get", "limitrange", "-o", "name") == ""
        body = {
            "metadata": {"name": "b"},
            "spec": {"containers": [{**container, "resources": huge}]},
        }
        async with bob.post(f"/api/v1/namespaces/{where}/pods", json=body) as answer:
            assert answer.status == code
    async with bob.delete("/api/v1/namespaces/limited/limitranges/default-limits") as answer:
        assert answer.status == 403


class ProjectWatch:
    """The events of a watch of projects."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, str]:
        """Return type and name of the next event."""
        async with asyncio.timeout(10):
            event = json.loads(await self._answer.content.readline())
        assert event["object"]["kind"] == "Project"
        self.last = event["object"]
        return event["type"], event["object"]["metadata"]["name"]


@asynccontextmanager
async def watch(session: aiohttp.ClientSession, query: str) -> AsyncIterator[ProjectWatch]:
    async with session.get(f"{PROJECTS}?watch=1&timeoutSeconds=60{query}") as answer:
        assert answer.status == 200
        yield ProjectWatch(answer)


NAMESPACES = "/api/v1/namespaces"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def binding(name: str, user: str, role: str, kind: str = "ClusterRole") -> dict[str, Any]:
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    return {
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "name": user, **group}],
        "roleRef": {"kind": kind, "name": role, **group},
    }


def role(name: str) -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}
    return {"metadata": {"name": name}, "rules": [rule]}


async def test_project_watch_follows_rights(server: ApiServer, kubectl: Kubectl, tmp_path: Path) -> None:
    async def write(method: str, path: str, body: Any = None) -> None:
        media_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with root.request(method, path, data=data, headers={"Content-Type": media_type}) as answer:
            assert answer.status < 300, await answer.text()

    def label(team: str) -> dict[str, Any]:
        return {"metadata": {"labels": {"team": team}}}

    async with (
        user_session(server, tmp_path, "dan") as dan,
        user_session(server, tmp_path, "root", "system:masters") as root,
    ):
        for name in ("one", "two", "other"):
            await write("POST", NAMESPACES, {"metadata": {"name": name}})
        await write("POST", f"{RBAC}/clusterroles", role("namespace-reader"))
        async with dan.get(PROJECTS) as answer:
            revision = (await answer.json())["metadata"]["resourceVersion"]
        async with watch(dan, f"&resourceVersion={revision}") as live, watch(dan, "&labelSelector=team=a") as labelled:
            await write("POST", f"{RBAC}/namespaces/one/rolebindings", binding("dans", "dan", "view"))
            assert await live.next() == ("ADDED", "one")
            await write("PATCH", f"{NAMESPACES}/other", label("a"))  # dan must not see it.
            await write("PATCH", f"{NAMESPACES}/one", label("a"))
            assert await live.next() == ("MODIFIED", "one")
            assert await labelled.next() == ("ADDED", "one")
            await write("DELETE", f"{RBAC}/namespaces/one/rolebindings/dans")
            for each in (live, labelled):
                assert await each.next() == ("DELETED", "one")
                assert each.last["metadata"].keys() == {"name", "resourceVersion"}
            await write("PATCH", f"{NAMESPACES}/one", label("b"))
            # A role gives the right in one namespace, then a cluster role binding in all of them.
            await write("POST", f"{RBAC}/namespaces/two/roles", role("reader"))
            await write("POST", f"{RBAC}/namespaces/two/rolebindings", binding("dans", "dan", "reader", "Role"))
            assert await live.next() == ("ADDED", "two")
            await write("DELETE", f"{RBAC}/namespaces/two/roles/reader")
            assert await live.next() == ("DELETED", "two")
            await write("POST", f"{RBAC}/clusterrolebindings", binding("dans", "dan", "namespace-reader"))
            assert await labelled.next() == ("ADDED", "other")
            async with root.get(NAMESPACES) as answer:
                names = [each["metadata"]["name"] for each in (await answer.json())["items"]]
            assert {await live.next() for _ in names} == {("ADDED", name) for name in names}
            await write("DELETE", f"{RBAC}/clusterrolebindings/dans")
            assert {await live.next() for _ in names} == {("DELETED", name) for name in names}
        for name in ("one", "two", "other"):
            await write("DELETE", f"{NAMESPACES}/{name}")


async def test_watch_of_one_project_reports_a_right_that_was_lost_before_it_began(
    bob: aiohttp.ClientSession, kubectl: Kubectl
) -> None:
    """`kubectl delete project` lists, and then waits by a watch. Meanwhile the role binding may be gone."""
    for name in ("losing", "lost"):
        await request_project(name, bob)
    async with bob.get(PROJECTS) as answer:
        revision = (await answer.json())["metadata"]["resourceVersion"]
    await asyncio.to_thread(kubectl, "-n", "losing", "delete", "rolebinding", "admin")
    await asyncio.to_thread(kubectl, "delete", "namespace", "lost")
    for name in ("losing", "lost"):
        query = f"&resourceVersion={revision}&fieldSelector=metadata.name={name}"
        async with watch(bob, query) as live, asyncio.timeout(10):
            seen = [await live.next()]
            while seen[-1][0] != "DELETED":
                seen.append(await live.next())
        assert seen[-1] == ("DELETED", name)


async def test_project_watch_ends_with_the_deletion_of_a_project(bob: aiohttp.ClientSession) -> None:
    await request_project("short-lived", bob)
    async with bob.get(PROJECTS) as answer:
        revision = (await answer.json())["metadata"]["resourceVersion"]
    async with watch(bob, f"&resourceVersion={revision}") as live:
        await request_project("second", bob)
        assert await live.next() == ("ADDED", "second")
        async with bob.delete(f"{PROJECTS}/short-lived"):
            seen = [await live.next()]
            while seen[-1][0] != "DELETED":
                seen.append(await live.next())
    assert seen[-1] == ("DELETED", "short-lived")
    assert set(seen[:-1]) <= {("MODIFIED", "short-lived"), ("MODIFIED", "second")}


def test_self_provisioning_is_off_by_default_and_projects_are_limited_by_settings(tmp_path: Path) -> None:
    server = ApiServer(tmp_path, "--project-request-message=Ask the desk.", "--max-projects-per-user=1")

    def subjects() -> str:
        words = ("get", "clusterrolebinding", "self-provisioners", "-o", "jsonpath={.subjects[*].name}")
        command = [shutil.which("kubectl") or "kubectl", f"--kubeconfig={server.kubeconfig}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    async def as_user(name: str, groups: tuple[str, ...]) -> list[tuple[int, str]]:
        async with user_session(server, tmp_path, name, *groups) as session:
            async with session.get(REQUESTS) as answer:
                answers = [(answer.status, (await answer.json()).get("message", ""))]
            for project in ("first", "second"):
                status, body = await request_project(project, session)
                answers.append((status, body.get("message", "")))
        return answers

    server.start()
    assert subjects() == ""
    assert asyncio.run(as_user("bob", (PEOPLE,))) == [(403, "Ask the desk.")] * 3
    limited = 'projects.project.openshift.io "second" is forbidden: user root cannot create more than 1 project(s).'
    assert asyncio.run(as_user("root", ("system:masters",))) == [(200, ""), (201, ""), (403, limited)]
    assert server.stop() == 0


async def test_project_display_name_is_changed_and_project_deleted(
    bob: aiohttp.ClientSession, kubectl: Kubectl
) -> None:
    await request_project("short", bob)
    patch = {"Content-Type": "application/merge-patch+json"}
    name = {"metadata": {"annotations": {"openshift.io/display-name": "Short"}}}
    async with bob.patch(f"{PROJECTS}/short", data=json.dumps(name), headers=patch) as answer:
        assert answer.status == 200
    for change in ({"labels": {"a": "b"}}, {"annotations": {"openshift.io/requester": "eve"}}):
        body = json.dumps({"metadata": change})
        async with bob.patch(f"{PROJECTS}/short", data=body, headers=patch) as answer:
            refused = await answer.json()
        assert (refused["code"], "try updating the namespace" in refused["message"]) == (422, True)
    assert (
        kubectl("get", "namespace", "short", "-o", r"jsonpath={.metadata.annotations.openshift\.io/display-name}")
        == "Short"
    )
    async with bob.delete(f"{PROJECTS}/short") as answer:
        assert (answer.status, (await answer.json())["status"]["phase"]) == (200, "Terminating")
    kubectl("wait", "--for=delete", "namespace/short", "--timeout=20s")
    async with bob.delete(PROJECTS) as answer:
        assert answer.status in {403, 405}


def test_administrator_creates_projects_and_lists_them_by_kubectl(kubectl: Kubectl) -> None:
    assert "projects" in kubectl("api-resources", "--api-group=project.openshift.io", "-o", "name")
    kubectl("create", "--raw", PROJECTS, "-f", "/dev/null", code=1)
    assert kubectl("explain", "project").startswith("GROUP:      project.openshift.io")
    kubectl("delete", "project", "foreign", "--timeout=20s")
    assert "NotFound" in kubectl("get", "namespace", "foreign", code=1)
