"""CPU time of the master for requests, with and without SCCs, audit log and scopes of tokens, in turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from bench.api_server_process import FLAGS
from bench.measurement import Measure, Measurement, Progress
from bench.process_time import cpu_seconds
from tests.testbed.apiserver.oauth import oauth_session, token_session
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session

IN_FLIGHT = 4
PROJECT, EDITOR = "red", "ann"
PODS = f"/api/v1/namespaces/{PROJECT}/pods"
BINDINGS = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/rolebindings"
ANYBODY = [
    {
        "name": "anybody",
        "challenge": True,
        "login": True,
        "provider": {"apiVersion": "v1", "kind": "AllowAllPasswordIdentityProvider"},
    }
]
COMMON = (*FLAGS, "--identity-providers", json.dumps(ANYBODY))
SETTINGS = {
    "default": (),
    "no SCC": ("--security-context-constraints", "false"),
    "no audit": ("--audit-log-path", "none"),
}
"""Flags of each master."""

Send = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Size:
    """How often each case is measured, and with how many requests."""

    rounds: int
    requests: int


FULL, SMALLEST = Size(rounds=12, requests=300), Size(rounds=1, requests=4)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure creates of pods and reads of one, each beside the same request without one of the features."""
    root = Path(tempfile.mkdtemp(prefix="podlane-bench-", dir="/var/tmp"))
    servers = {name: ApiServer(root / name.replace(" ", "-"), *COMMON, *flags) for name, flags in SETTINGS.items()}
    try:
        for server in servers.values():
            server.root.mkdir()
            server.start()
        return asyncio.run(_measure(servers, size, progress))
    finally:
        for server in servers.values():
            server.stop()
        shutil.rmtree(root)


MEASURE = Measure("SCCs, audit log and scopes, beside requests without them", measure, FULL, SMALLEST)


async def _measure(servers: dict[str, ApiServer], size: Size, progress: Progress) -> list[Measurement]:
    async with AsyncExitStack() as stack:
        sessions = {name: await stack.enter_async_context(_editor(server)) for name, server in servers.items()}
        tokens = {
            scope: await stack.enter_async_context(_with_token(servers["default"], scope))
            for scope in ("user:full", f"role:view:{PROJECT}")
        }
        cases: dict[str, tuple[ApiServer, Send]] = {
            **{f"create, {name}": (servers[name], _creating(session)) for name, session in sessions.items()},
            **{f"get, {name}": (servers[name], _getting(sessions[name])) for name in ("default", "no audit")},
            **{f"get, {scope}": (servers["default"], _getting(session)) for scope, session in tokens.items()},
        }
        samples: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(size.rounds + 1):
            progress(f"round {number} of {size.rounds}")
            for case in itertools.islice(itertools.cycle(cases), number % len(cases), number % len(cases) + len(cases)):
                server, send = cases[case]
                microseconds = await _cpu_time(server, send, size.requests)
                if number:  # The first round is a warm-up.
                    samples[case].append(microseconds)
    create, get = "CPU of the master for the create of a pod", "CPU of the master for the read of a pod"
    return [
        _pair(f"{create}, SCC", samples["create, default"], "without SCC", samples["create, no SCC"]),
        _pair(f"{create}, audit", samples["create, default"], "without audit", samples["create, no audit"]),
        _pair(f"{get}, audit", samples["get, default"], "without audit", samples["get, no audit"]),
        _pair(
            f"{get}, token with the scope of a role",
            samples[f"get, role:view:{PROJECT}"],
            "user:full",
            samples["get, user:full"],
        ),
        _pair(f"{get}, token user:full", samples["get, user:full"], "certificate", samples["get, default"]),
    ]


def _pair(what: str, samples: list[float], floor: str, floor_samples: list[float]) -> Measurement:
    return Measurement(what, "us", tuple(samples), None, floor, tuple(floor_samples))


@asynccontextmanager
async def _editor(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Make the project, its editor and a pod, and yield the session of the editor."""
    subjects = [{"kind": "User", "name": EDITOR, "apiGroup": "rbac.authorization.k8s.io"}]
    role = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        for path, document in (
            ("/api/v1/namespaces", {"metadata": {"name": PROJECT}}),
            (BINDINGS, {"metadata": {"name": EDITOR}, "subjects": subjects, "roleRef": role}),
            (PODS, _pod("web")),
        ):
            await client.request("POST", path, msgspec.json.encode(document))
    async with user_session(server, server.root, EDITOR) as session:
        yield session


@asynccontextmanager
async def _with_token(server: ApiServer, scope: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session of the editor with a token that is limited to a scope."""
    async with oauth_session(server) as browser:
        token = await browser.token(EDITOR, "any", scope)
    async with token_session(server, token) as session:
        yield session


def _pod(name: str) -> dict[str, Any]:
    """Return a pod with two containers that no scheduler binds."""
    containers = [
        {"name": each, "image": "registry.example.com/app:1", "ports": [{"containerPort": 8080}]} for each in "ab"
    ]
    return {"metadata": {"name": name}, "spec": {"schedulerName": "nobody", "containers": containers}}


def _creating(session: aiohttp.ClientSession) -> Send:
    """Return the request that creates a pod and stores nothing, so that each round has the same state."""

    async def create(number: int) -> None:
        async with session.post(f"{PODS}?dryRun=All", json=_pod(f"p{number}")) as response:
            assert response.status == 201, await response.text()
            await response.read()

    return create


def _getting(session: aiohttp.ClientSession) -> Send:
    async def get(_: int) -> None:
        async with session.get(f"{PODS}/web") as response:
            assert response.status == 200, await response.text()
            await response.read()

    return get


async def _cpu_time(server: ApiServer, send: Send, requests: int) -> float:
    """Return the microseconds of processor time that a request takes in the master, also in its threads."""
    before = cpu_seconds(server.pid)
    for begin in range(0, requests, IN_FLIGHT):
        await asyncio.gather(*map(send, range(begin, begin + IN_FLIGHT)))
    return (cpu_seconds(server.pid) - before) / requests * 1e6
