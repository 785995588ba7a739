"""CNI: the plugin's environment, network configurations and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from node_agent.network.cni import (
    CniNetwork,
    CniRecord,
    InvalidConflist,
    attachment_from_result,
    parse_conflist,
    plugin_call,
)
from reconcile.errors import Gone, NotReady, Refused

REQUEST = AttachRequest(
    sandbox="5a",
    netns="/proc/7/ns/net",
    namespace="red",
    name="web",
    runtime=NODE_AGENT,
    uid="u1",
    ingress_bandwidth=1_000_000,
)
LIST: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [{"type": "first", "a": 1}, {"type": "second", "capabilities": {"bandwidth": True}}],
}


def record(result: dict[str, Any] | None = None) -> CniRecord:
    return CniRecord(parse_conflist(json.dumps(LIST).encode()), REQUEST, 1, result)


def test_cni_plugin_gets_the_specified_environment_and_config() -> None:
    first = plugin_call("ADD", record(), 0, "/bin", None)
    assert (first.plugin, json.loads(first.stdin)) == (
        "first",
        {"type": "first", "a": 1, "name": "net", "cniVersion": "1.0.0"},
    )
    assert first.environment == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "5a",
        "CNI_NETNS": "/proc/7/ns/net",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/bin",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=red;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=5a;"
        "K8S_POD_UID=u1",
    }
    second = json.loads(plugin_call("DEL", record(), 1, "/bin", {"ips": []}, "").stdin)
    assert second["prevResult"] == {"ips": []}
    assert second["runtimeConfig"] == {"bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 2_147_483_647}}
    assert "capabilities" not in second
    assert plugin_call("DEL", record(), 1, "/bin", None, "").environment["CNI_NETNS"] == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cniVersion": "0.3.1"}, "cniVersion is '0.3.1'; 0.4.0 or 1.0.0 is accepted"),
        ({"plugins": []}, "at least one, each with a type"),
        ({"plugins": [{"name": "x"}]}, "at least one, each with a type"),
        ({"plugins": [{"type": "../sh"}]}, "the name of a file"),
        ({"plugins": 1}, "Expected `array`"),
    ],
)
def test_invalid_cni_network_list_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConflist, match=message):
        parse_conflist(json.dumps({**LIST, **change}).encode())


def test_cni_result_address_is_that_of_the_pods_interface() -> None:
    ends = [{"name": "veth1"}, {"name": "eth0", "mac": "0a:58:00:00:00:01", "sandbox": "/x"}]
    attachment = attachment_from_result(
        {"interfaces": ends, "ips": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}]}
    )
    assert (attachment.ip, attachment.gateway) == ("10.9.0.2/24", "10.9.0.1")
    assert (attachment.mac, attachment.host_interface) == ("0a:58:00:00:00:01", "veth1")
    assert attachment_from_result({}).ip == ""


PLUGIN = """#!/bin/sh
echo "$CNI_COMMAND $(basename $0) ${CNI_NETNS:-gone}" >> LOG
test -e FAIL && grep -q "^$CNI_COMMAND $(basename $0)$" FAIL && { echo '{"code": 100, "msg": "no way"}'; exit 1; }
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}], "by": "'$(basename $0)'"}'
"""


class Plugins:
    """Two plugins that record their calls, and their network."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.namespace = root / "netns"
        self.namespace.touch()
        (root / "conf").mkdir()
        (root / "conf" / "10-net.conflist").write_text(json.dumps(LIST))
        for name in ("first", "second"):
            (root / name).write_text(PLUGIN.replace("LOG", str(root / "log")).replace("FAIL", str(root / "fail")))
            (root / name).chmod(0o755)

    def agent(self) -> CniNetwork:
        """Return the network of a restarted agent."""
        return CniNetwork(self.root / "conf", f"/nowhere:{self.root}", self.root / "state")

    def request(self) -> AttachRequest:
        return AttachRequest(sandbox="5a", netns=str(self.namespace), namespace="red", name="web", runtime=NODE_AGENT)

    def fail(self, *calls: str) -> None:
        """Make these calls fail from now on, and no others."""
        (self.root / "fail").write_text("\n".join(calls))

    def calls(self) -> list[str]:
        """Return the calls since the last time."""
        log = self.root / "log"
        lines = log.read_text().replace(str(self.namespace), "here").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    return Plugins(tmp_path)


async def test_cni_plugins_add_in_order_and_delete_in_reverse(plugins: Plugins) -> None:
    assert (await plugins.agent().attach(plugins.request())).ip == "10.9.0.2/24"
    assert plugins.calls() == ["ADD first here", "ADD second here"]
    assert (await plugins.agent().attach(plugins.request())).ip == "10.9.0.2/24"
    assert plugins.calls() == ["CHECK first here", "CHECK second here"]
    assert await plugins.agent().list_sandboxes() == {"5a"}
    (plugins.root / "conf" / "10-net.conflist").unlink()
    await plugins.agent().detach("5a")
    await plugins.agent().detach("5a")
    assert plugins.calls() == ["DEL second here", "DEL first here"]
    assert await plugins.agent().list_sandboxes() == frozenset()


async def test_cni_detach_skips_a_reused_network_namespace(plugins: Plugins) -> None:
    await plugins.agent().attach(plugins.request())
    plugins.namespace.rename(plugins.root / "old")
    plugins.namespace.touch()
    plugins.calls()
    with pytest.raises(Gone, match="lost its network namespace"):
        await plugins.agent().attach(plugins.request())
    await plugins.agent().detach("5a")
    assert plugins.calls() == ["DEL second gone", "DEL first gone"]


async def test_failed_cni_add_is_rolled_back(plugins: Plugins) -> None:
    plugins.fail("ADD second")
    with pytest.raises(Refused, match="CNI plugin second ADD: no way"):
        await plugins.agent().attach(plugins.request())
    assert plugins.calls() == ["ADD first here", "ADD second here", "DEL second here", "DEL first here"]
    plugins.fail("ADD second", "DEL first")
    with pytest.raises(Refused):
        await plugins.agent().attach(plugins.request())
    assert await plugins.agent().list_sandboxes() == {"5a"}, "it is known that something may be left"
    plugins.calls()
    plugins.fail()
    await plugins.agent().attach(plugins.request())
    assert plugins.calls() == ["DEL second here", "DEL first here", "ADD first here", "ADD second here"]


async def test_cni_check_failure_means_the_sandbox_is_lost(plugins: Plugins) -> None:
    await plugins.agent().attach(plugins.request())
    plugins.fail("CHECK first")
    with pytest.raises(Gone, match="CNI plugin first CHECK: no way"):
        await plugins.agent().attach(plugins.request())


async def test_network_is_not_ready_without_config_or_plugin(plugins: Plugins) -> None:
    assert (await plugins.agent().status()).ready
    (plugins.root / "second").unlink()
    with pytest.raises(NotReady, match="CNI plugin second is in none of /nowhere:"):
        await plugins.agent().attach(plugins.request())
    (plugins.root / "conf" / "10-net.conflist").write_text("{}")
    with pytest.raises(NotReady, match=r"10-net\.conflist: Object missing required field"):
        await plugins.agent().status()
    (plugins.root / "conf" / "10-net.conflist").unlink()
    with pytest.raises(NotReady, match=r"there is no \*\.conflist in"):
        await plugins.agent().status()
