"""Pods on a node without a network: they run, and report it only if they need an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.core.pod import Pod
from node_agent.host import etc_hosts_path
from node_agent.network.dns import hosts_file_content
from node_agent.network.plugin import NoNetwork
from node_agent.runtime.container_gc import SandboxGC
from tests.unit.node_agent.examples import UID, make_pod
from tests.unit.node_agent.fake_host import FakeHost, fake_host

FIELD = "env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"


def ready(host: FakeHost) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in host.status.conditions)


def hosts_of(host: FakeHost) -> str:
    return Path(etc_hosts_path(host.host, UID)).read_text()


async def test_pod_that_needs_no_address_is_ready_without_a_network(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.network = NoNetwork()
        await host.live(make_pod(), lambda: ready(host))
        assert (host.status.pod_ip, host.status.pod_ips, host.status.reason) == ("", (), "")
        assert "\tweb" not in hosts_of(host)
        await SandboxGC(host.docker, host.network).collect()
        assert host.docker.running("main") is not None


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        (make_pod("[{name: main, image: toolbox, ports: [{containerPort: 80}]}]"), "spec.containers[0].ports"),
        (make_pod(f"[{{name: main, image: toolbox, {FIELD}}}]"), "spec.containers[0].env[0]"),
    ],
)
async def test_pod_that_needs_an_address_reports_the_missing_network(tmp_path: Path, pod: Pod, field: str) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.network = NoNetwork()
        await host.live(pod, lambda: host.status.phase == "Running")
        assert not ready(host)
        assert host.status.reason == "NoPodAddress"
        assert host.status.message == f"the network of this node gives pods no address, which is needed for {field}"


def test_hosts_file_has_a_line_for_the_pod_only_with_an_address() -> None:
    assert hosts_file_content(make_pod(), "10.1.2.3", "", "").endswith("10.1.2.3\tweb\n")
    assert hosts_file_content(make_pod(), "", "", "").endswith("ip6-allrouters\n")
