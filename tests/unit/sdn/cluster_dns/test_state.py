"""VNIDs of DNS clients, and the stored state of cluster DNS."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from nameserver.resolver import UNKNOWN_CLIENT, ClusterZone
from nameserver.service_store import ServiceStore
from sdn.cluster_dns.state import ClientVnids, client_vnids, dump, load
from sdn.topology import DockerNetwork, NodeNetwork, Pod
from tests.unit.nameserver.examples import DOMAIN, answer_text, endpoint, service, slice_of
from tests.unit.sdn.examples import CLUSTER, NODE

PODS = frozenset({Pod(16, IPv4Address("10.128.0.2"), 10), Pod(17, IPv4Address("10.128.0.3"), 0)})
DOCKER = DockerNetwork(IPv4Network("10.128.1.128/25"), 3, 7)
NETWORK = NodeNetwork(CLUSTER, NODE, frozenset(), PODS, docker=DOCKER)


@pytest.mark.parametrize(
    ("address", "vnid", "flat"),
    [
        ("10.128.0.2", 10, 10),
        ("10.128.0.3", 0, 0),
        ("10.128.0.1", 0, 0),
        ("10.245.2.3", 0, 0),
        ("127.0.0.1", 0, 0),
        ("10.128.1.200", 7, 7),
        ("10.128.0.4", UNKNOWN_CLIENT, 0),
        ("10.128.2.2", UNKNOWN_CLIENT, 0),
        ("10.128.2.1", UNKNOWN_CLIENT, 0),
        ("10.245.2.4", UNKNOWN_CLIENT, UNKNOWN_CLIENT),
        ("192.0.2.1", UNKNOWN_CLIENT, UNKNOWN_CLIENT),
    ],
)
def test_only_local_clients_have_a_vnid(address: str, vnid: int, flat: int) -> None:
    assert client_vnids(NETWORK).vnid_of(address) == vnid
    assert client_vnids(replace(NETWORK, cluster=replace(CLUSTER, multitenant=False))).vnid_of(address) == flat


CLIENTS = ClientVnids({"10.128.0.2": 10, "10.128.0.1": 0}, (IPv4Network("10.128.1.128/25"), 7), ())


@pytest.mark.parametrize("vnids", [{"red": 10, "blue": 11}, None])
def test_stored_dns_state_is_restored(vnids: dict[str, int] | None) -> None:
    directory = ServiceStore()
    directory.replace(
        [
            service("red", "web", '{"clusterIP": "172.30.0.5", "ports": [{"port": 80, "name": "http"}]}'),
            service("red", "db", '{"clusterIP": "None", "publishNotReadyAddresses": true}'),
            service("blue", "docs", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}'),
        ],
        [slice_of("db", "red", endpoint("10.128.0.9", hostname="db-0", conditions={"ready": False}))],
    )
    before = ClusterZone(directory, DOMAIN, vnids)
    after, loaded_vnids = load(dump(before, CLIENTS), DOMAIN.origin)
    for name, kind in (
        ("web.red.svc.cluster.local", "A"),
        ("_http._tcp.web.red.svc.cluster.local", "SRV"),
        ("db-0.db.red.svc.cluster.local", "A"),
        ("docs.blue.svc.cluster.local", "A"),
        ("9.0.128.10.in-addr.arpa", "PTR"),
        ("ns.dns.cluster.local", "A"),
    ):
        for vnid in (0, 10, 11):
            assert answer_text(after, name, kind, vnid) == answer_text(before, name, kind, vnid)
        assert answer_text(after, name, kind)[1]
    assert [loaded_vnids.vnid_of(address) for address in ("10.128.0.2", "10.128.1.200", "10.128.2.2")] == [
        CLIENTS.vnid_of(address) for address in ("10.128.0.2", "10.128.1.200", "10.128.2.2")
    ]


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"gateway": 1}'])
def test_invalid_dns_state_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        load(data, DOMAIN.origin)
