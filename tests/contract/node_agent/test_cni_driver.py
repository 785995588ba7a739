"""The CNI plugins of Debian's containernetworking-plugins, executed: a bridge with local addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from lab.process import run
from node_agent.network.cni import CniNetwork
from reconcile.errors import Gone

PLUGINS = "/usr/lib/cni"
WORLD = "podcni"


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
async def test_cni_plugins_attach_keep_and_detach_a_sandbox(node: str, pod: str, tmp_path: Path, version: str) -> None:
    addresses = {"type": "host-local", "dataDir": str(tmp_path / "addresses"), "ranges": [[{"subnet": "10.77.0.0/24"}]]}
    bridge = {"type": "bridge", "bridge": WORLD, "isGateway": True, "ipam": addresses}
    tuning = {"type": "tuning", "mtu": 1400}
    network = {"cniVersion": version, "name": "net", "plugins": [bridge, tuning]}
    (tmp_path / "net.conflist").write_text(json.dumps(network))

    def agent() -> CniNetwork:
        return CniNetwork(tmp_path, PLUGINS, tmp_path / "state")

    request = AttachRequest(sandbox="5a" * 32, netns=pod, namespace="red", name="web", runtime=NODE_AGENT)
    first = await agent().attach(request)
    assert (first.ip, first.gateway) == ("10.77.0.2/24", "10.77.0.1")
    inside = Path(pod).name
    seen = run("ip", "-n", inside, "addr", "show", "eth0")
    assert "10.77.0.2/24" in seen
    assert "mtu 1400" in seen
    assert first.mac in seen
    assert first.host_interface in run("ip", "-n", node, "link", "show", "master", WORLD)
    run("ip", "netns", "exec", inside, "ping", "-c", "1", "-W", "2", "10.77.0.1")
    assert await agent().attach(request) == first
    run("ip", "-n", inside, "link", "del", "eth0")
    with pytest.raises(Gone, match="CNI plugin bridge CHECK"):
        await agent().attach(request)
    for _ in range(2):
        await agent().detach(request.sandbox)
    assert await agent().list_sandboxes() == frozenset()
    assert not run("ip", "-n", node, "link", "show", "master", WORLD)
    assert [path.name for path in (tmp_path / "addresses" / "net").glob("10.*")] == []
    assert (await agent().attach(request)).ip == "10.77.0.3/24"
    await agent().detach(request.sandbox)
    run("ip", "-n", node, "link", "del", WORLD)
