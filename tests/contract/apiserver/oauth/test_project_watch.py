"""A watch of projects by a user with an access token follows the groups of the user."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from tests.testbed.apiserver.oauth import OAuthSession, token_session
from tests.testbed.apiserver.process import ApiServer

PROJECTS = "/apis/project.openshift.io/v1/projects"
GROUPS = "/apis/user.openshift.io/v1/groups"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECONDS = 20.0


async def post(admin: aiohttp.ClientSession, path: str, name: str, **fields: object) -> None:
    async with admin.post(path, json={"metadata": {"name": name}, **fields}) as response:
        assert response.status == 201, await response.text()


async def put_members(admin: aiohttp.ClientSession, group: str, *members: str) -> None:
    async with admin.patch(
        f"{GROUPS}/{group}",
        json={"users": list(members)},
        headers={"Content-Type": "application/merge-patch+json"},
    ) as response:
        assert response.status == 200, await response.text()


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, str]:
    async with asyncio.timeout(SECONDS):
        event = json.loads(await response.content.readline())
    return event["type"], event["object"]["metadata"]["name"]


async def test_project_watch_follows_the_groups_of_its_user(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    for name in ("red", "blue"):
        await post(admin, "/api/v1/namespaces", name)
        await post(admin, GROUPS, f"team-{name}", users=["bob"])
        await post(
            admin,
            f"{RBAC}/namespaces/{name}/rolebindings",
            "team",
            subjects=[{"kind": "Group", "name": f"team-{name}", "apiGroup": "rbac.authorization.k8s.io"}],
            roleRef={"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"},
        )
    token = await browser.token("alice")
    async with token_session(server, token) as alice:
        async with alice.get(PROJECTS) as response:
            listed = await response.json()
            assert listed["items"] == []
        revision = listed["metadata"]["resourceVersion"]
        async with alice.get(f"{PROJECTS}?watch=1&resourceVersion={revision}") as response:
            assert response.status == 200
            await put_members(admin, "team-red", "bob", "alice")
            assert await next_event(response) == ("ADDED", "red")
            await put_members(admin, "team-blue", "carol", "alice")
            assert await next_event(response) == ("ADDED", "blue")
            await put_members(admin, "team-red", "carol")
            assert await next_event(response) == ("DELETED", "red")
            async with admin.delete(f"{GROUPS}/team-blue") as deleted:
                assert deleted.status == 200
            assert await next_event(response) == ("DELETED", "blue")
            await post(admin, GROUPS, "team-blue", users=["alice"])
            assert await next_event(response) == ("ADDED", "blue")
        async with alice.get(PROJECTS) as response:
            assert [item["metadata"]["name"] for item in (await response.json())["items"]] == ["blue"]
