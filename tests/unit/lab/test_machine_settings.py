"""What a lab takes over from its machine: resolvers and proxies at loopback addresses, and settings of Docker."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from lab.relay import Endpoint, loopback_endpoints
from lab.topology import Site, docker_settings, proxy_exceptions

SITE = Site("podx", IPv4Network("10.245.9.0/24"))


@pytest.mark.parametrize(
    ("resolv_conf", "environment", "expected"),
    [
        ("nameserver 10.0.0.1\nsearch example.org\n", {}, ()),
        ("", {}, ()),
        ("nameserver\nnameserver words\n", {}, ()),
        ("nameserver 127.0.0.53\noptions edns0\n", {}, ("tcp:127.0.0.53:53", "udp:127.0.0.53:53")),
        ("nameserver ::1\n", {}, ("tcp:::1:53", "udp:::1:53")),
        ("", {"HTTP_PROXY": "http://proxy.example.org:3128"}, ()),
        ("", {"HTTPS_PROXY": "http://user:pass@127.0.0.1:3128/"}, ("tcp:127.0.0.1:3128",)),
        ("", {"https_proxy": "localhost:8080", "HTTP_PROXY": "http://127.0.0.1:8080"}, ("tcp:127.0.0.1:8080",)),
        ("", {"HTTP_PROXY": "http://[::1]:8118"}, ("tcp:::1:8118",)),
        ("", {"HTTP_PROXY": "http://localhost"}, ("tcp:127.0.0.1:80",)),
        ("", {"HTTP_PROXY": "http://localhost:nonsense"}, ()),
    ],
)
def test_loopback_endpoints_of_resolvers_and_proxies(
    resolv_conf: str, environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    found = loopback_endpoints(resolv_conf, environment)
    assert tuple(map(str, found)) == expected
    assert tuple(Endpoint.parse(str(endpoint)) for endpoint in found) == found


def test_proxies_are_not_asked_for_hosts_of_the_lab() -> None:
    assert proxy_exceptions({"NO_PROXY": "a.example"}, SITE) == {}
    own = "10.245.9.0/24,10.246.9.0/24,10.128.0.0/14,172.30.0.0/16,203.0.113.0/24,.cluster.local"
    assert proxy_exceptions({"HTTP_PROXY": "http://proxy:1"}, SITE) == {"NO_PROXY": own, "no_proxy": own}
    given = proxy_exceptions({"https_proxy": "http://proxy:1", "no_proxy": "a.example,"}, SITE)
    assert given == {"NO_PROXY": f"a.example,{own}", "no_proxy": f"a.example,{own}"}


def test_docker_settings_of_the_machine_that_concern_registries_are_kept() -> None:
    machine = {"registry-mirrors": ["https://mirror.example"], "data-root": "/srv/docker", "bridge": "none"}
    assert docker_settings(machine) == {"registry-mirrors": ["https://mirror.example"]}
