"""Garbage collection of terminated pods, by a real master that keeps one of them."""

from __future__ import annotations

from pathlib import Path

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient

PODS = "/api/v1/namespaces/default/pods"


async def test_pod_gc_deletes_terminated_pods_at_startup(tmp_path: Path) -> None:
    server = ApiServer(tmp_path, "--finished-pods", "1")
    server.start()
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        api_client = UntypedClient(client)
        for name in ("first", "second", "third"):
            await api_client.create(PODS, name=name, spec={"containers": [{"name": "c", "image": "i"}]})
            if name != "first":
                await api_client.request("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
    server.stop()
    server.start()
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        actual = await UntypedClient(client).wait_until(PODS, lambda pods: len(pods["items"]) == 2)
        assert [(pod["metadata"]["name"], pod["status"]["phase"]) for pod in actual["items"]] == [
            ("first", "Pending"),
            ("third", "Succeeded"),
        ]
    server.stop()
