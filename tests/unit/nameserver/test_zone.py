"""The names of the cluster zone."""

from __future__ import annotations

import pytest

from nameserver.service_store import ServiceStore
from tests.unit.nameserver.examples import NOTHING, addresses, answer_text, names, service


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("web.red.svc.cluster.local", ["NOERROR", "172.30.0.5"]),
        ("WEB.Red.svc.Cluster.LOCAL", ["NOERROR", "172.30.0.5"]),
        ("web.red.cluster.local", ["NOERROR", "172.30.0.5"]),
        ("web.red.endpoints.cluster.local", ["NOERROR", "10.128.0.9"]),
        ("db.red.svc.cluster.local", ["NOERROR", "10.128.0.2", "10.128.2.3", "10.128.4.5"]),
        ("db.red.endpoints.cluster.local", ["NOERROR", "10.128.0.2", "10.128.2.3", "10.128.4.5"]),
        ("db-0.db.red.svc.cluster.local", ["NOERROR", "10.128.0.2"]),
        ("10-128-2-3.db.red.svc.cluster.local", ["NOERROR", "10.128.2.3"]),
        ("db-1.db.red.svc.cluster.local", ["NXDOMAIN"]),
        ("empty.red.svc.cluster.local", ["NOERROR"]),
        ("late.red.svc.cluster.local", ["NOERROR", "10.128.0.6"]),
        ("10-128-0-9.red.pod.cluster.local", ["NOERROR", "10.128.0.9"]),
        ("10-128-0-999.red.pod.cluster.local", ["NXDOMAIN"]),
        ("red.svc.cluster.local", ["NOERROR"]),
        ("nobody.svc.cluster.local", ["NXDOMAIN"]),
        ("nope.red.svc.cluster.local", ["NXDOMAIN"]),
        ("www.example.com.red.svc.cluster.local", ["NXDOMAIN"]),
        ("www.example.com.svc.cluster.local", ["NXDOMAIN"]),
        ("www.example.com.cluster.local", ["NXDOMAIN"]),
        ("blue.cluster.local", ["NOERROR", "172.30.0.6"]),
        ("ns.dns.cluster.local", ["NOERROR", "10.128.0.1"]),
        ("round.red.svc.cluster.local", ["SERVFAIL"]),
        ("_tcp.web.red.svc.cluster.local", ["NOERROR"]),
        ("_sctp.web.red.svc.cluster.local", ["NXDOMAIN"]),
        ("\\200.red.svc.cluster.local", ["NXDOMAIN"]),
    ],
)
def test_service_and_pod_names_have_their_addresses(directory: ServiceStore, name: str, wanted: list[str]) -> None:
    assert addresses(directory, name) == wanted


@pytest.mark.parametrize("star", ["*", "any"])
def test_wildcard_names_match_all_visible_services(directory: ServiceStore, star: str) -> None:
    everything = ["172.30.0.5", "172.30.0.6", "172.30.0.7", "172.30.0.8"]
    assert addresses(directory, f"web.{star}.svc.cluster.local") == ["NOERROR", *everything]
    assert addresses(directory, f"web.{star}.svc.cluster.local", vnid=11) == ["NOERROR", "172.30.0.6", "172.30.0.8"]
    assert addresses(directory, f"{star}.blue.svc.cluster.local") == ["NOERROR", "172.30.0.6"]
    assert addresses(directory, f"{star}.db.red.svc.cluster.local")[1:] == ["10.128.0.2", "10.128.2.3", "10.128.4.5"]
    assert len(answer_text(names(directory), f"_{star}._{star}.web.red.svc.cluster.local", "SRV")[1]) == 2


def test_service_named_like_a_wildcard_takes_precedence(directory: ServiceStore) -> None:
    directory.put_service(("red", "any"), service("red", "any", '{"clusterIP": "172.30.0.99"}'))
    assert addresses(directory, "any.red.svc.cluster.local") == ["NOERROR", "172.30.0.99"]


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("_http._tcp.web.red.svc.cluster.local", "SRV", ["0 100 80 web.red.svc.cluster.local."]),
        ("_http._udp.web.red.svc.cluster.local", "SRV", NOTHING),
        (
            "_sql._tcp.db.red.svc.cluster.local",
            "SRV",
            [
                "0 33 5432 10-128-2-3.db.red.svc.cluster.local.",
                "0 33 5432 10-128-4-5.db.red.svc.cluster.local.",
                "0 33 5432 db-0.db.red.svc.cluster.local.",
            ],
        ),
        (
            "web.red.svc.cluster.local",
            "SRV",
            ["0 50 53 web.red.svc.cluster.local.", "0 50 80 web.red.svc.cluster.local."],
        ),
        ("web.red.svc.cluster.local", "AAAA", NOTHING),
        ("docs.red.svc.cluster.local", "CNAME", ["www.example.com."]),
        ("here.red.svc.cluster.local", "A", ["172.30.0.5", "web.red.svc.cluster.local."]),
        ("5.0.30.172.in-addr.arpa", "PTR", ["web.red.svc.cluster.local."]),
        ("2.0.128.10.in-addr.arpa", "PTR", ["db-0.db.red.svc.cluster.local."]),
        ("3.2.128.10.in-addr.arpa", "PTR", ["10-128-2-3.db.red.svc.cluster.local."]),
        ("9.0.128.10.in-addr.arpa", "PTR", NOTHING),
        ("dns-version.cluster.local", "TXT", ['"1.1.0"']),
        ("cluster.local", "NS", ["ns.dns.cluster.local."]),
    ],
)
def test_name_has_records_of_the_queried_type(directory: ServiceStore, name: str, kind: str, wanted: list[str]) -> None:
    rows = [line.split(" ", 4)[4] for line in answer_text(names(directory), name, kind)[1]]
    assert sorted(rows) == wanted
