"""The output of `podlane network services`."""

from __future__ import annotations

from api.network.queries import RejectionReport, ServicePortReport, ServicesResult
from cli.services import text

FIVE = tuple(f"10.128.0.{number}:8080" for number in range(2, 7))


def test_service_port_is_printed_with_all_its_fields() -> None:
    port = ServicePortReport(
        service="red/web",
        port="80/TCP",
        name="http",
        vnid=10,
        frontends=("172.30.0.7:80", "192.0.2.1:80", "*:30080"),
        internal_endpoints=FIVE,
        cluster_endpoints=FIVE,
        external_endpoints=(),
        affinity_seconds=30,
    )
    head, line = text(ServicesResult(ports=(port,)), all_endpoints=False).splitlines()
    assert head.split() == ["SERVICE", "PORT", "VNID", "FRONTENDS", "ENDPOINTS", "NOTES"]
    assert "red/web  http 80/TCP  10    172.30.0.7:80 192.0.2.1:80 *:30080  " in line
    assert f"{' '.join(FIVE[:4])} and 1 more" in line
    assert line.endswith("a client keeps its endpoint for 30 s; for external clients none: this node has no endpoint")
    assert FIVE[4] in text(ServicesResult(ports=(port,)), all_endpoints=True)


def test_services_report_prints_none_and_rejected_endpoints() -> None:
    assert text(ServicesResult(), all_endpoints=False) == "no services"
    rejection = RejectionReport(
        service="red/web", subject="endpoint 10.128.2.9:80", reason="is a pod of the project blue"
    )
    port = ServicePortReport(service="red/web", port="80/TCP")
    lines = text(
        ServicesResult(ports=(port,), rejected=(rejection,), omitted_ports=3), all_endpoints=False
    ).splitlines()
    assert lines[1].split() == ["red/web", "80/TCP", "0", "-", "none:", "connections", "are", "refused", "-"]
    assert lines[2:] == [
        "and 3 ports more: name a project",
        "rejected in red/web: endpoint 10.128.2.9:80 is a pod of the project blue",
    ]
