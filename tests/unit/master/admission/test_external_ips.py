"""External IPs that users choose, and ingress IPs that the master assigns."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.services import LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus
from api.validation.registry import decode, default
from master.admission.service_ips import check_external_ips
from master.config import ExternalNetworks, MasterConfig, config_problems, network_config, parse_port_range
from master.controllers.actions import Update, Warn
from master.controllers.network import ingress_ips
from master.errors import StatusError
from tests.unit.master.action_lines import cursor, lines
from tests.unit.master.examples import meta

FREE = ExternalNetworks.read(["203.0.113.0/24", "!203.0.113.8/29", "0.0.0.0/1"])
RESERVED = {IPv4Network("10.128.0.0/14"): "in the cluster network 10.128.0.0/14"}


def service(name: str = "web", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Service:
    document = {"metadata": {"name": name, "namespace": "red"}, "spec": {"ports": [{"port": 80}], **spec}}
    result, problems_, _ = decode(Service, document)
    assert result is not None, problems_
    return default(replace(result, metadata=meta(name, namespace="red", creation_timestamp=created)))


def at(*addresses: str, name: str = "web", **spec: Any) -> Service:
    return service(name, externalIPs=list(addresses), **spec)


def test_external_ip_in_an_allowed_network_is_admitted() -> None:
    check_external_ips(at("203.0.113.1", "1.2.3.4"), None, [at("203.0.113.2", name="b")], FREE, RESERVED)


REFUSED = [
    (
        "198.51.100.1",
        r"spec\.externalIPs\[0\]: .*an address in 203\.0\.113\.0/24, 0\.0\.0\.0/1 but not in 203\.0\.113\.8/29",
    ),
    ("203.0.113.9", r"spec\.externalIPs\[0\]: .*externalIP is not allowed"),
    ("10.128.4.4", r"it is in the cluster network 10\.128\.0\.0/14"),
    ("203.0.113.2", r"service red/b has port 80/TCP of it"),
]


@pytest.mark.parametrize(("address", "words"), REFUSED)
def test_external_ip_outside_allowed_networks_is_rejected(address: str, words: str) -> None:
    with pytest.raises(StatusError, match=words) as refused:
        check_external_ips(at(address), None, [at("203.0.113.2", name="b")], FREE, RESERVED)
    assert refused.value.status.code == 422


def test_no_external_ip_is_allowed_by_default() -> None:
    with pytest.raises(StatusError, match="the setting externalIPNetworkCIDRs accepts none"):
        check_external_ips(at("203.0.113.1"), None, [], ExternalNetworks(), {})


def test_service_keeps_its_existing_external_ip() -> None:
    """The setting may have changed meanwhile."""
    old = at("198.51.100.1")
    check_external_ips(at("198.51.100.1", selector={"a": "b"}), old, [], FREE, RESERVED)
    with pytest.raises(StatusError, match=r"externalIPs\[1\]"):
        check_external_ips(at("198.51.100.1", "198.51.100.2"), old, [], FREE, RESERVED)


def test_services_may_share_an_external_ip_at_different_ports() -> None:
    other = at("203.0.113.1", name="b", ports=[{"port": 81}, {"port": 80, "protocol": "UDP", "name": "u"}][:1])
    check_external_ips(at("203.0.113.1"), None, [other], FREE, RESERVED)
    with pytest.raises(StatusError, match="has port 81/TCP of it"):
        check_external_ips(at("203.0.113.1", ports=[{"port": 81}]), at("203.0.113.1"), [other], FREE, RESERVED)


# --- ingress ----------------------------------------------------------------------------------------------------------

TINY = IPv4Network("172.29.0.0/29")


def with_ingress_ip(obj: Service, address: str) -> Service:
    load_balancer_ingress = LoadBalancerIngress(ip=address, ip_mode="VIP")
    return replace(obj, status=ServiceStatus(LoadBalancerStatus((load_balancer_ingress,))))


def addresses(services: list[Service], start: int = 0, network: IPv4Network | None = TINY) -> dict[str, str]:
    writes = ingress_ips.reconcile(network, services, cursor(start))
    return {
        write.object.metadata.name: write.object.status.load_balancer.ingress[0].ip
        for write in writes
        if isinstance(write, Update) and isinstance(write.object, Service)
    }


def balanced(name: str = "web", **rest: Any) -> Service:
    return service(name, type="LoadBalancer", **rest)


def test_load_balancer_service_gets_an_ingress_ip() -> None:
    services = [balanced("a"), balanced("b"), service("c"), balanced("d", loadBalancerClass="example.org/own")]
    assert addresses(services) == {"a": "172.29.0.1", "b": "172.29.0.2"}
    assigned = [with_ingress_ip(services[0], "172.29.0.1"), with_ingress_ip(services[1], "172.29.0.2")]
    assert lines(ingress_ips.reconcile(TINY, assigned, cursor(2))) == []


def test_freed_ingress_ip_is_not_reused_at_once_and_one_may_be_requested() -> None:
    assert addresses([balanced("a")], start=3) == {"a": "172.29.0.4"}
    asking = balanced("b", loadBalancerIP="172.29.0.2")
    assert addresses([balanced("a"), asking], start=1) == {"a": "172.29.0.3", "b": "172.29.0.2"}
    assert addresses([with_ingress_ip(balanced("a"), "172.29.0.2"), asking], start=2) == {"b": "172.29.0.3"}


def test_duplicate_ingress_ip_stays_with_the_older_service() -> None:
    older = with_ingress_ip(balanced("b", created="2025-01-01T00:00:00Z"), "172.29.0.1")
    assert addresses([with_ingress_ip(balanced("a"), "172.29.0.1"), older], start=1) == {"a": "172.29.0.2"}


def test_changed_ingress_network_assigns_new_ips() -> None:
    services = [with_ingress_ip(balanced("a"), "172.29.0.1")]
    assert addresses(services, network=IPv4Network("172.28.0.0/24")) == {"a": "172.28.0.1"}
    assert addresses(services, network=None) == {}


def test_service_without_an_ingress_ip_gets_an_event() -> None:
    services = [balanced(f"s{number}") for number in range(7)]
    assert len(set(addresses(services).values())) == 6
    actual = ingress_ips.reconcile(TINY, services, cursor(0))
    assert [warning.about for warning in actual if isinstance(warning, Warn)] == ["service red/s6"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_external_ip_settings_are_parsed() -> None:
    config = network_config(
        MasterConfig(services_node_port_range="31000-31009", external_ip_network_cidrs=("203.0.113.0/24",))
    )
    assert config.services.node_ports == range(31000, 31010)
    assert config.services.external.admitted == (IPv4Network("203.0.113.0/24"),)
    assert config.services.ingress == IPv4Network("172.29.0.0/16")
    assert network_config(MasterConfig(ingress_ip_network_cidr="")).services.ingress is None


BAD = [
    ({"services_node_port_range": "5-4"}, "servicesNodePortRange: found '5-4'"),
    ({"services_node_port_range": "30000"}, "servicesNodePortRange: found '30000'"),
    ({"services_node_port_range": "1-70000"}, "servicesNodePortRange: found"),
    ({"external_ip_network_cidrs": ("203.0.113.0/24", "!x")}, r"externalIPNetworkCIDRs\[1\]: found '!x'"),
    ({"ingress_ip_network_cidr": "x"}, "ingressIPNetworkCIDR: found 'x'"),
    ({"ingress_ip_network_cidr": "172.30.4.0/24"}, "serviceNetwork: found .* overlap"),
    *(
        ({"master_public_url": url}, "masterPublicURL: found")
        for url in (
            "htp//x",
            "http://m.example",
            "https://m.example/",
            "https://m:x",
            "https://a@m.example",
            "https://[",
        )
    ),
]


@pytest.mark.parametrize(("settings", "words"), BAD, ids=str)
def test_invalid_external_ip_settings_are_rejected(settings: dict[str, Any], words: str) -> None:
    (sentence,) = config_problems(MasterConfig(**settings))
    assert re.search(words, sentence), sentence


def test_port_range_is_parsed() -> None:
    assert parse_port_range("1-65535") == range(1, 65536)
