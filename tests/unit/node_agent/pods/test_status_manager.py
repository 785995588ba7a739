"""Answers of an API server to the status of a pod that was replaced."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.pod import Pod, PodIP, PodStatus
from node_agent.pods.status_manager import StatusManager, pod_status_patch
from tests.unit.node_agent.examples import make_pod

POD = make_pod()
GONE = [
    (404, "NotFound", 'pods "web" not found'),
    (409, "Conflict", "Precondition failed: UID in precondition: 1, UID in object meta: 2"),
    (422, "Invalid", 'Pod "web" is invalid: metadata.uid: Invalid value: "1": field is immutable'),
]


@pytest.mark.parametrize(("code", "reason", "message"), GONE)
async def test_status_of_a_replaced_pod_is_not_written(code: int, reason: str, message: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        return web.json_response(status, status=code)

    app = web.Application()
    app.router.add_patch("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Client(Kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}", b"")) as client:
        api_pods: dict[str, Pod] = {POD.metadata.uid: POD}
        writer = StatusManager(client, lambda: api_pods)
        writer.set_status(replace(POD, status=PodStatus(phase="Running")))
        task = asyncio.create_task(writer.loop.run())
        async with asyncio.timeout(10):
            while writer.known_uids():
                await asyncio.sleep(0.001)
        task.cancel()
    await runner.cleanup()


IPS = (PodIP(ip="10.128.0.2"),)
LISTS = [
    ((), (), None),
    ((), IPS, [{"ip": "10.128.0.2"}]),
    (IPS, (), [{"$patch": "replace"}]),
    (IPS, IPS, [{"$patch": "replace"}, {"ip": "10.128.0.2"}]),
]


@pytest.mark.parametrize(("current_ips", "pod_ips", "expected"), LISTS)
def test_status_patch_replaces_pod_ips_only_when_present(
    current_ips: tuple[PodIP, ...], pod_ips: tuple[PodIP, ...], expected: object
) -> None:
    patch = pod_status_patch("u", PodStatus(pod_ips=pod_ips), PodStatus(pod_ips=current_ips))
    assert msgspec.json.decode(msgspec.json.encode(patch))["status"]["podIPs"] == expected
