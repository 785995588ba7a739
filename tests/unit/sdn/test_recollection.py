"""What is kept of a node's names is what is recalled."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from nameserver.resolver import ClusterZone
from nameserver.service_store import ServiceStore
from sdn.cluster_dns.state import ClientVnids, dump, load
from tests.unit.nameserver.made import DOMAIN, endpoint, service, slice_of, told

ASKERS = ClientVnids({"10.128.0.2": 10, "10.128.0.1": 0}, (IPv4Network("10.128.1.128/25"), 7), ())


@pytest.mark.parametrize("lanes", [{"red": 10, "blue": 11}, None])
def test_what_was_kept_is_told_to_the_same(lanes: dict[str, int] | None) -> None:
    directory = ServiceStore()
    directory.replace(
        [
            service("red", "web", '{"clusterIP": "172.30.0.5", "ports": [{"port": 80, "name": "http"}]}'),
            service("red", "db", '{"clusterIP": "None", "publishNotReadyAddresses": true}'),
            service("blue", "docs", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}'),
        ],
        [slice_of("db", "red", endpoint("10.128.0.9", hostname="db-0", conditions={"ready": False}))],
    )
    before = ClusterZone(directory, DOMAIN, lanes)
    after, who = load(dump(before, ASKERS), DOMAIN.origin)
    for name, kind in (
        ("web.red.svc.cluster.local", "A"),
        ("_http._tcp.web.red.svc.cluster.local", "SRV"),
        ("db-0.db.red.svc.cluster.local", "A"),
        ("docs.blue.svc.cluster.local", "A"),
        ("9.0.128.10.in-addr.arpa", "PTR"),
        ("ns.dns.cluster.local", "A"),
    ):
        for lane in (0, 10, 11):
            assert told(after, name, kind, lane) == told(before, name, kind, lane)
        assert told(after, name, kind)[1]
    assert [who.lane(one) for one in ("10.128.0.2", "10.128.1.200", "10.128.2.2")] == [
        ASKERS.lane(one) for one in ("10.128.0.2", "10.128.1.200", "10.128.2.2")
    ]


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"gateway": 1}'])
def test_what_is_no_recollection_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        load(data, DOMAIN.origin)
