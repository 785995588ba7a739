"""A real master reports a node that is too old, and the node's own writes leave the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from master.server.discovery import MASTER_VERSION
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient

NODES = "/api/v1/nodes"
TOO_NEW = "v999.0.0"


def skews(nodes: dict[str, Any]) -> dict[str, str]:
    """Return the messages of the condition by node."""
    return {
        node["metadata"]["name"]: condition["message"]
        for node in nodes["items"]
        for condition in node["status"].get("conditions", ())
        if condition["type"] == "VersionSkew"
    }


async def report(connection: Client, name: str, version: str) -> None:
    """Write the status of a node as its agent does."""
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    status = {"nodeInfo": {"kubeletVersion": f"{version}+podlane"}, "conditions": [ready]}
    body = json.dumps({"status": status}).encode()
    await connection.request("PATCH", f"{NODES}/{name}/status", body, "application/strategic-merge-patch+json")


async def test_node_that_does_not_fit_its_master_has_a_condition_until_it_does(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    server.start()
    async with Client(Kubeconfig.load(server.kubeconfig)) as connection:
        client = UntypedClient(connection)
        for name, version in (("fits", MASTER_VERSION), ("ahead", TOO_NEW)):
            await client.create(NODES, name=name)
            await report(connection, name, version)
        nodes = await client.wait_until(NODES, lambda found: bool(skews(found)))
        assert list(skews(nodes)) == ["ahead"]
        assert f"{TOO_NEW}, the master {MASTER_VERSION}: a node newer than its master" in skews(nodes)["ahead"]
        events = await client.wait_until(
            "/api/v1/namespaces/default/events?fieldSelector=reason=VersionSkew", lambda found: bool(found["items"])
        )
        assert [event["involvedObject"]["name"] for event in events["items"]] == ["ahead"]
        await report(connection, "ahead", TOO_NEW)
        assert list(skews(await client.request("GET", NODES))) == ["ahead"]
        await report(connection, "ahead", MASTER_VERSION)
        await client.wait_until(NODES, lambda found: not skews(found))
    server.stop()
