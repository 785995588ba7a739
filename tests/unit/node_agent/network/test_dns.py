"""Host names and resolvers of pods."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from api.network.attach import Attachment, AttachRequest
from node_agent.host import HostInfo, resolv_conf_path
from node_agent.network.dns import (
    ResolvConf,
    hosts_file_content,
    missing_cluster_dns,
    parse_resolv_conf,
    pod_resolv_conf,
    sandbox_hostname,
)
from node_agent.network.plugin import NoNetwork
from node_agent.runtime.pod_files import make_pod_dir, write_resolv_conf
from node_agent.runtime.spec import ContainerInputs, container_config, sandbox_config
from reconcile.errors import NotReady, Refused
from tests.unit.node_agent.examples import SANDBOX, UID, make_pod, make_sandbox
from tests.unit.node_agent.fake_host import fake_host

DOMAIN = "cluster.local"
HOST = HostInfo("/pods", 8 << 30, -1000)
LAN = parse_resolv_conf(
    "# a comment\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch lan example.com\noptions rotate ndots:2\n"
)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("", "web"),
        ("  hostname: shop", "shop"),
        ("  subdomain: shops", "web"),
        ("  {hostname: shop, subdomain: shops, setHostnameAsFQDN: true}", "shop.shops.red.svc.cluster.local"),
        ("  setHostnameAsFQDN: true", "web"),
        ("  hostNetwork: true", ""),
        ("  {hostname: shop, subdomain: shops, hostnameOverride: front.example}", "front.example"),
    ],
)
def test_pod_hostname_and_domain_follow_its_spec(spec: str, name: str) -> None:
    flat = "\n".join(f"  {part}" for part in spec.strip().strip("{}").split(", ")) if spec else ""
    assert sandbox_hostname(make_pod(spec=flat), DOMAIN) == name


def test_host_network_pod_has_the_hosts_domain() -> None:
    config = sandbox_config(make_pod(spec="  subdomain: shops"), "pause", 0, HOST)
    of_host = sandbox_config(make_pod(spec="  subdomain: shops\n  hostNetwork: true"), "pause", 0, HOST)
    assert (config.domain, of_host.domain) == ("shops.red.svc.cluster.local", "")


def test_hostname_over_the_kernel_limit_is_reported() -> None:
    pod = make_pod(spec=f"  subdomain: {'s' * 60}\n  setHostnameAsFQDN: true")
    with pytest.raises(Refused, match="longer than 64"):
        sandbox_hostname(pod, DOMAIN)


def test_hosts_file_has_kubelets_content() -> None:
    pod = make_pod(spec="  subdomain: shops\n  hostAliases: [{ip: 192.0.2.9, hostnames: [a, b.example]}]")
    lines = hosts_file_content(pod, "10.128.0.2", DOMAIN, "").splitlines()
    assert lines[:2] == ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost"]
    assert lines[-4:] == [
        "10.128.0.2\tweb.shops.red.svc.cluster.local\tweb",
        "",
        "# Entries added by HostAliases.",
        "192.0.2.9\ta\tb.example",
    ]
    assert hosts_file_content(make_pod(), "10.128.0.2", DOMAIN, "").splitlines()[-1] == "10.128.0.2\tweb"


def test_host_network_pod_gets_the_hosts_hosts_file() -> None:
    text = hosts_file_content(
        make_pod(spec="  hostNetwork: true"), "10.245.2.3", DOMAIN, "127.0.0.1 localhost\n127.0.1.1 node"
    )
    assert text == "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n127.0.1.1 node\n"


def resolved(spec: str, dns: tuple[str, ...] = ("10.0.0.53",)) -> ResolvConf:
    return pod_resolv_conf(make_pod(spec=spec), LAN, dns, DOMAIN)[0]


CLUSTER = ResolvConf(
    ("10.0.0.53",), ("red.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan", "example.com"), ("ndots:5",)
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", CLUSTER),
        ("  dnsPolicy: Default", LAN),
        ("  hostNetwork: true", LAN),
        ("  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet", CLUSTER),
        (
            "  dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.7], searches: [x], options: [{name: edns0}]}",
            ResolvConf(("192.0.2.7",), ("x",), ("edns0",)),
        ),
        (
            "  dnsPolicy: Default\n  dnsConfig: {nameservers: [192.0.2.2, 192.0.2.7], searches: [lan, x], "
            "options: [{name: ndots, value: '1'}, {name: edns0}]}",
            ResolvConf(
                ("192.0.2.1", "192.0.2.2", "192.0.2.7"), ("lan", "example.com", "x"), ("rotate", "ndots:1", "edns0")
            ),
        ),
    ],
)
def test_resolv_conf_follows_dns_policy(spec: str, expected: ResolvConf) -> None:
    assert resolved(spec) == expected


def test_pods_use_the_host_resolver_without_cluster_dns() -> None:
    assert resolved("", ()) == LAN


@pytest.mark.parametrize(
    ("spec", "falls_back"),
    [
        ("  dnsPolicy: ClusterFirst", True),
        ("  dnsPolicy: ClusterFirst\n  hostNetwork: true", False),
        ("  dnsPolicy: ClusterFirstWithHostNet\n  hostNetwork: true", True),
        ("  dnsPolicy: Default", False),
        ("  dnsPolicy: None\n  dnsConfig: {nameservers: [1.1.1.1]}", False),
    ],
)
def test_missing_cluster_dns_is_reported(spec: str, falls_back: bool) -> None:
    pod = make_pod(spec=spec)
    assert bool(missing_cluster_dns(pod, ())) is falls_back
    assert not missing_cluster_dns(pod, ("10.0.0.10",))


def test_resolv_conf_entries_over_the_limits_are_omitted_and_reported() -> None:
    pod = make_pod(spec="  dnsConfig: {nameservers: [192.0.2.5, 192.0.2.6, 192.0.2.7]}")
    applied, exceeded = pod_resolv_conf(pod, LAN, (), DOMAIN)
    assert applied.nameservers == ("192.0.2.1", "192.0.2.2", "192.0.2.5")
    assert exceeded == (
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
        "192.0.2.1 192.0.2.2 192.0.2.5"
    )
    long = ResolvConf(searches=tuple(f"{number:03}.{'x' * 60}" for number in range(40)))
    applied, exceeded = pod_resolv_conf(make_pod(), long, (), DOMAIN)
    assert len(" ".join(applied.searches)) <= 2048
    assert exceeded.startswith("Search limits were exceeded")


def test_resolv_conf_is_rewritten_in_place(tmp_path: Path) -> None:
    of_host = tmp_path / "resolv.conf"
    host = HostInfo(str(tmp_path / "pods"), 8 << 30, -1000, resolv_conf=str(of_host))
    with pytest.raises(NotReady, match="No such file"):
        write_resolv_conf(make_pod(), host)
    make_pod_dir(host, UID)
    path = Path(resolv_conf_path(host, UID))
    inodes = set()
    for server in ("192.0.2.1", "192.0.2.2"):
        of_host.write_text(f"nameserver {server}\n")
        assert write_resolv_conf(make_pod(), host) == ""
        assert path.read_text() == f"nameserver {server}\n"
        inodes.add(path.stat().st_ino)
    assert len(inodes) == 1
    assert path.stat().st_mode & 0o777 == 0o644


def first_line(path: str) -> str:
    return Path(path).read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("cluster_dns", "network", "expected", "is_reported"),
    [
        ((), "10.128.0.1", "10.128.0.1", False),
        (("10.0.0.53",), "10.128.0.1", "10.0.0.53", False),
        ((), "", "192.0.2.1", True),
    ],
)
async def test_configured_cluster_dns_overrides_the_networks(
    tmp_path: Path, cluster_dns: tuple[str, ...], network: str, expected: str, is_reported: bool
) -> None:
    class Network(NoNetwork):
        async def attach(self, _: AttachRequest) -> Attachment:
            return Attachment("10.128.0.2/23", "10.128.0.1", "", 1450, "v", network)

    async with fake_host(tmp_path / "w") as host:
        of_host = tmp_path / "resolv.conf"
        of_host.write_text("nameserver 192.0.2.1\n")
        host.network = Network()
        host.host = dataclasses.replace(host.host, resolv_conf=str(of_host), cluster_dns=cluster_dns)
        make_pod_dir(host.host, UID)
        await host.sandbox().attach(make_pod(), make_sandbox())
        assert first_line(resolv_conf_path(host.host, UID)) == f"nameserver {expected}"
        assert [reason for reason, _, _ in host.recorded_events] == ["MissingClusterDNS"] * is_reported


def test_resolv_conf_round_trips() -> None:
    assert parse_resolv_conf(str(CLUSTER)) == CLUSTER
    assert str(ResolvConf()) == ""


MODES = ("network", "ipc", "pid", "uts")


@pytest.mark.parametrize(
    ("spec", "modes", "inside"),
    [
        ("", ("none", "shareable", "", ""), ("S", "S", "", "")),
        ("  hostNetwork: true", ("host", "shareable", "", "host"), ("S", "S", "", "host")),
        ("  hostIPC: true", ("none", "host", "", ""), ("S", "host", "", "")),
        ("  hostPID: true", ("none", "shareable", "host", ""), ("S", "S", "host", "")),
        ("  shareProcessNamespace: true", ("none", "shareable", "", ""), ("S", "S", "S", "")),
    ],
)
def test_sandbox_and_containers_have_the_namespaces_of_the_spec(
    spec: str, modes: tuple[str, ...], inside: tuple[str, ...]
) -> None:
    pod = make_pod(spec=spec)
    outer = sandbox_config(pod, "pause", 0, HOST)
    assert tuple(getattr(outer, mode) for mode in MODES) == modes
    inner = container_config(pod, pod.spec.containers[0], ContainerInputs("sha256:1", SANDBOX), HOST)
    assert tuple(getattr(inner, mode).replace(f"container:{SANDBOX}", "S") for mode in MODES) == inside
