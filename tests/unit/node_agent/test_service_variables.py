"""What containers are told of services."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from node_agent.runtime.environment import service_env
from tests.unit.node_agent.make import pod

POD = pod()


def service(name: str, address: str, *ports: ServicePort, namespace: str = "red") -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace=namespace), spec=ServiceSpec(cluster_ip=address, ports=ports)
    )


WEB = service(
    "web-ui", "172.30.0.9", ServicePort(port=80, name="http-x"), ServicePort(port=53, name="dns", protocol="UDP")
)
MASTER = service("kubernetes", "172.30.0.1", ServicePort(port=443, name="https"), namespace="default")
TOLD = {
    "WEB_UI_SERVICE_HOST": "172.30.0.9",
    "WEB_UI_SERVICE_PORT": "80",
    "WEB_UI_SERVICE_PORT_HTTP_X": "80",
    "WEB_UI_SERVICE_PORT_DNS": "53",
    "WEB_UI_PORT": "tcp://172.30.0.9:80",
    "WEB_UI_PORT_80_TCP": "tcp://172.30.0.9:80",
    "WEB_UI_PORT_80_TCP_PROTO": "tcp",
    "WEB_UI_PORT_80_TCP_PORT": "80",
    "WEB_UI_PORT_80_TCP_ADDR": "172.30.0.9",
    "WEB_UI_PORT_53_UDP": "udp://172.30.0.9:53",
    "WEB_UI_PORT_53_UDP_PROTO": "udp",
    "WEB_UI_PORT_53_UDP_PORT": "53",
    "WEB_UI_PORT_53_UDP_ADDR": "172.30.0.9",
}


def test_of_a_service_every_port_is_told() -> None:
    assert service_env(POD, (WEB,)) == TOLD


def test_only_services_of_the_namespace_with_an_address_are_told_and_the_api_server() -> None:
    others = (
        service("far", "172.30.0.3", ServicePort(port=1), namespace="blue"),
        service("headless", "None", ServicePort(port=1)),
        service("new", "", ServicePort(port=1)),
        service("portless", "172.30.0.4"),
    )
    told = service_env(POD, (MASTER, *others))
    assert {name.partition("_")[0] for name in told} == {"KUBERNETES"}
    own = service("kubernetes", "172.30.0.77", ServicePort(port=443))
    for order in ((own, MASTER), (MASTER, own)):
        assert service_env(POD, order)["KUBERNETES_SERVICE_HOST"] == "172.30.0.77"


def test_a_pod_without_links_is_told_of_the_api_server_alone() -> None:
    alone = replace(POD, spec=replace(POD.spec, enable_service_links=False))
    assert service_env(alone, (WEB, MASTER)) == service_env(POD, (MASTER,))


def test_an_ipv6_address_stands_in_brackets_where_a_port_follows() -> None:
    told = service_env(POD, (service("six", "fd00::9", ServicePort(port=80)),))
    assert (told["SIX_PORT"], told["SIX_SERVICE_HOST"]) == ("tcp://[fd00::9]:80", "fd00::9")
