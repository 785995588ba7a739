"""Evictions, disruption budgets and `kubectl drain`, against a real master."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.kubectl import ALL_PROGRAMS


class Project:
    """A namespace with pods that are Ready, and a budget for them."""

    def __init__(self, api_client: UntypedClient, name: str) -> None:
        self.api_client = api_client
        self.name = name
        self.at = f"/api/v1/namespaces/{name}/pods"
        self.budgets = f"/apis/policy/v1/namespaces/{name}/poddisruptionbudgets"

    async def begin(self, *, node: str = "", pods: int = 0, **budget: Any) -> None:
        await self.api_client.create("/api/v1/namespaces", name=self.name)
        for number in range(pods):
            await self.pod(f"p{number}", node)
        if budget:
            spec = {"selector": {"matchLabels": {"app": "web"}}, **budget}
            await self.api_client.create(self.budgets, name="b", spec=spec)
            await self.budget(lambda status: status["expectedPods"] == pods)

    async def pod(self, name: str, node: str = "", ready: bool = True) -> None:
        spec = {"containers": [{"name": "c", "image": "i"}], **({"nodeName": node} if node else {})}
        await self.api_client.create(self.at, name=name, metadata={"labels": {"app": "web"}}, spec=spec)
        conditions = [{"type": "Ready", "status": str(ready)}]
        patch = {"status": {"phase": "Running", "conditions": conditions}}
        assert (await self.api_client.request("PATCH", f"{self.at}/{name}/status", patch))["kind"] == "Pod"

    async def budget(self, good: Any) -> Any:
        actual = await self.api_client.wait_until(
            f"{self.budgets}/b", lambda budget: budget["status"]["observedGeneration"] > 0 and good(budget["status"])
        )
        return actual["status"]

    async def evict(self, name: str, **more: Any) -> Any:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **more}
        return await self.api_client.request("POST", f"{self.at}/{name}/eviction", body)

    async def left(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in (await self.api_client.request("GET", self.at))["items"]]


async def test_eviction_deletes_the_pod_and_decreases_the_budget(api_client: UntypedClient) -> None:
    red = Project(api_client, "red")
    await red.begin(pods=3, minAvailable=2)
    before = await red.budget(lambda status: status["disruptionsAllowed"] == 1)
    assert (before["currentHealthy"], before["desiredHealthy"]) == (3, 2)
    tried = await red.evict("p0", deleteOptions={"dryRun": ["All"]})
    assert tried["code"] == 201
    assert await red.left() == ["p0", "p1", "p2"]
    assert await red.evict("p0") == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    }  # fmt: skip
    assert (await red.evict("p1"))["code"] == 429
    await red.budget(lambda status: status["currentHealthy"] == 2)
    refused = await red.evict("p1")
    assert refused["causes"] == ["The disruption budget b needs 2 healthy pods and has 2 currently"]
    assert await red.left() == ["p1", "p2"]
    assert (await red.evict("p9"))["code"] == 404
    assert (await red.evict("p1", metadata={"name": "p2"}))["code"] == 400
    other = await red.evict("p1", deleteOptions={"preconditions": {"uid": "another"}})
    assert (other["code"], other["reason"]) == (409, "Conflict")


async def test_concurrent_evictions_never_exceed_the_budget(api_client: UntypedClient) -> None:
    blue = Project(api_client, "blue")
    await blue.begin(pods=30, minAvailable=23)
    await blue.budget(lambda status: status["disruptionsAllowed"] == 7)
    answers = await asyncio.gather(*(blue.evict(f"p{number}") for number in range(30)))
    codes = [answer["code"] for answer in answers]
    assert sorted(set(codes)) == [201, 429]
    assert codes.count(201) == 7
    assert len(await blue.left()) == 23


async def test_evicted_pod_keeps_its_grace_period_and_reports_why_it_ends(api_client: UntypedClient) -> None:
    green = Project(api_client, "green")
    await api_client.create("/api/v1/nodes", name="host")
    await green.begin(node="host", pods=1)
    assert (await green.evict("p0", deleteOptions={"gracePeriodSeconds": 17}))["code"] == 201
    pod = await api_client.request("GET", f"{green.at}/p0")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 17
    condition = next(condition for condition in pod["status"]["conditions"] if condition["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert (await green.evict("p0", deleteOptions={"gracePeriodSeconds": 0}))["code"] == 201
    assert await green.left() == []


async def test_discovery_lists_evictions(api_client: UntypedClient) -> None:
    rows = (await api_client.request("GET", "/api/v1"))["resources"]
    resource = next(resource for resource in rows if resource["name"] == "pods/eviction")
    assert (resource["group"], resource["version"], resource["kind"], resource["verbs"]) == (
        "policy",
        "v1",
        "Eviction",
        ["create"],
    )


async def test_kubectl_drain_waits_for_the_budget(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> None:
    """All versions drain at once, because each waits five seconds before it retries."""
    await asyncio.gather(*(_drained(server, api_client, program, tmp_path) for program in ALL_PROGRAMS))


async def _drained(server: ApiServer, api_client: UntypedClient, program: str, home: Path) -> None:
    name = f"drained-{Path(program).name.replace('.', '-')}"
    project = Project(api_client, name)
    await api_client.create("/api/v1/nodes", name=name)
    await project.begin(node=name, pods=2, minAvailable=1)

    async def run(*more: str, code: int = 0) -> str:
        words = (program, f"--kubeconfig={server.kubeconfig}", *more)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, stdout=pipe, stderr=pipe, env={**os.environ, "HOME": str(home / name)}
        )
        out, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == code, f"{more}: {out.decode()} {errors.decode()}"
        return (out + errors).decode()

    drain = ("drain", name, "--force", "--grace-period=0")
    reported = await run(*drain, "--timeout=1s", code=1)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in reported
    assert len(await project.left()) == 1
    assert (await run("-n", name, "get", "pdb", "b", "--no-headers")).split()[:4] == ["b", "1", "N/A", "0"]
    await project.pod("elsewhere")
    await project.budget(lambda status: status["disruptionsAllowed"] == 1)
    assert f"node/{name} drained" in await run(*drain, "--timeout=30s")
    assert await project.left() == ["elsewhere"]
    await run("-n", name, "create", "pdb", "typed", "--selector=app=web", "--min-available=50%")
    typed = await api_client.request("GET", f"{project.budgets}/typed")
    assert typed["spec"] == {"minAvailable": "50%", "selector": {"matchLabels": {"app": "web"}}}
    assert "Allowed disruptions:" in await run("-n", name, "describe", "pdb", "b")
