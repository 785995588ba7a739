"""Reports about services."""

from __future__ import annotations

from api.core.endpoints import SlicePort
from api.core.services import ServicePort
from api.network.queries import ServicesRequest
from sdn.query.reports import services_report
from tests.unit.sdn.proxy.examples import HERE, endpoint, fill, service, service_map_of, slice_of


def test_services_report_lists_ports_endpoints_and_rejections() -> None:
    web = service(type="NodePort", ports=(ServicePort(port=80, name="http", protocol="TCP", node_port=30080),))
    other = service("other", "blue", cluster_ip="172.30.0.8")
    ports = (SlicePort(port=8080, name="http", protocol="TCP"),)
    service_map = service_map_of(web, slice_of("web", endpoint(HERE), endpoint("10.128.3.9"), ports=ports))
    fill(service_map, (other,), pods=()).apply_changes()
    services_result = services_report(ServicesRequest(namespace="red"), service_map.states)
    (port,) = services_result.ports
    assert (port.service, port.port, port.name, port.vnid) == ("red/web", "80/TCP", "http", 10)
    assert port.frontends == ("172.30.0.7:80", "*:30080")
    assert port.internal_endpoints == port.cluster_endpoints == port.external_endpoints == (f"{HERE}:8080",)
    assert [rejection_report.subject for rejection_report in services_result.rejected] == ["endpoint 10.128.3.9:8080"]
    assert {report.service for report in services_report(ServicesRequest(), service_map.states).ports} == {
        "red/web",
        "blue/other",
    }
    assert not services_report(ServicesRequest(namespace="red", name="other"), service_map.states).ports
