"""Projects as oc uses them: the namespaces that a user may read, and project requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
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
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
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
    given = {key.partition("/")[2]: value for key, value in created["metadata"]["annotations"].items()}
    assert {key: given.pop(f"sa.scc.{key}") for key in ("uid-range", "supplemental-groups", "mcs")}.keys()
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
