"""What the names of the cluster mean, and to whom."""

from __future__ import annotations

import pytest

from nameserver.resolver import UNKNOWN_CLIENT, Delegation
from nameserver.service_store import ServiceStore
from nameserver.zone import MAX_TARGETS, lookup
from tests.unit.nameserver.made import endpoint, names, question, service, slice_of, told

WEB = """{"clusterIP": "172.30.0.5", "ports": [
    {"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}
]}"""
PORTS = '[{"name": "sql", "port": 5432, "protocol": "TCP"}]'
NOTHING: list[str] = []


@pytest.fixture
def directory() -> ServiceStore:
    made = ServiceStore()
    made.replace(
        [
            service("red", "web", WEB),
            service("red", "db", '{"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]}'),
            service("red", "empty", '{"clusterIP": "None"}'),
            service("red", "docs", '{"type": "ExternalName", "externalName": "www.example.com"}'),
            service("red", "here", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}'),
            service("red", "round", '{"type": "ExternalName", "externalName": "round.red.svc.cluster.local"}'),
            service("red", "late", '{"clusterIP": "None", "publishNotReadyAddresses": true}'),
            service("blue", "web", '{"clusterIP": "172.30.0.6", "ports": [{"port": 80}]}'),
            service("pink", "web", '{"clusterIP": "172.30.0.7", "ports": [{"port": 80}]}'),
            service("default", "web", '{"clusterIP": "172.30.0.8", "ports": [{"port": 80}]}'),
        ],
        [
            slice_of("web", "red", endpoint("10.128.0.9"), ports='[{"name": "http", "port": 8080, "protocol": "TCP"}]'),
            slice_of(
                "db",
                "red",
                endpoint("10.128.0.2", hostname="db-0"),
                endpoint("10.128.2.3"),
                endpoint("10.128.0.4", conditions={"ready": False}),
                ports=PORTS,
            ),
            slice_of("db", "red", endpoint("10.128.4.5"), ports=PORTS, number=2),
            slice_of("late", "red", endpoint("10.128.0.6", conditions={"ready": False})),
        ],
    )
    return made


def addresses(directory: ServiceStore, name: str, lane: int = 0) -> list[str]:
    code, rows = told(names(directory), name, lane=lane)
    return [code, *sorted(row.split()[-1] for row in rows)]


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
def test_a_name_has_its_addresses(directory: ServiceStore, name: str, wanted: list[str]) -> None:
    assert addresses(directory, name) == wanted


@pytest.mark.parametrize("star", ["*", "any"])
def test_wildcards_stand_for_all_that_one_may_know(directory: ServiceStore, star: str) -> None:
    everything = ["172.30.0.5", "172.30.0.6", "172.30.0.7", "172.30.0.8"]
    assert addresses(directory, f"web.{star}.svc.cluster.local") == ["NOERROR", *everything]
    assert addresses(directory, f"web.{star}.svc.cluster.local", lane=11) == ["NOERROR", "172.30.0.6", "172.30.0.8"]
    assert addresses(directory, f"{star}.blue.svc.cluster.local") == ["NOERROR", "172.30.0.6"]
    assert addresses(directory, f"{star}.db.red.svc.cluster.local")[1:] == ["10.128.0.2", "10.128.2.3", "10.128.4.5"]
    assert len(told(names(directory), f"_{star}._{star}.web.red.svc.cluster.local", "SRV")[1]) == 2


def test_what_is_really_called_so_goes_before_a_wildcard(directory: ServiceStore) -> None:
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
def test_a_name_has_what_is_asked_for(directory: ServiceStore, name: str, kind: str, wanted: list[str]) -> None:
    rows = [row.split(" ", 4)[4] for row in told(names(directory), name, kind)[1]]
    assert sorted(rows) == wanted


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("web.red.svc.cluster.local", "A"),
        ("web.red.cluster.local", "A"),
        ("web.red.endpoints.cluster.local", "A"),
        ("_http._tcp.web.red.svc.cluster.local", "SRV"),
        ("10-128-0-9.red.pod.cluster.local", "A"),
        ("red.svc.cluster.local", "A"),
        ("red.cluster.local", "A"),
        ("docs.red.svc.cluster.local", "CNAME"),
        ("5.0.30.172.in-addr.arpa", "PTR"),
        ("2.0.128.10.in-addr.arpa", "PTR"),
    ],
)
def test_other_lanes_know_no_name_of_a_project(directory: ServiceStore, name: str, kind: str) -> None:
    known = names(directory)
    assert told(known, name, kind, lane=11) == ("NXDOMAIN", NOTHING)
    assert told(known, name, kind, lane=UNKNOWN_CLIENT) == ("NXDOMAIN", NOTHING)
    for lane in (0, 10):
        assert told(known, name, kind, lane=lane)[0] == "NOERROR"
    assert told(names(directory, None), name, kind, lane=11)[0] == "NOERROR", "one flat network"


def test_an_alias_does_not_lead_into_another_lane(directory: ServiceStore) -> None:
    spy = service("blue", "spy", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}')
    directory.put_service(("blue", "spy"), spy)
    code, rows = told(names(directory), "spy.blue.svc.cluster.local", lane=11)
    assert (code, [row.split()[3] for row in rows]) == ("NXDOMAIN", ["CNAME"])


def test_names_of_all_are_known_by_all(directory: ServiceStore) -> None:
    for lane in (UNKNOWN_CLIENT, 0, 10, 11):
        assert addresses(directory, "web.default.svc.cluster.local", lane) == ["NOERROR", "172.30.0.8"]


def test_joined_projects_know_each_other(directory: ServiceStore) -> None:
    assert addresses(directory, "web.pink.svc.cluster.local", lane=10) == ["NOERROR", "172.30.0.7"]


@pytest.mark.parametrize("name", ["example.com", "1.0.0.127.in-addr.arpa", "local", "1.0.31.172.in-addr.arpa"])
def test_other_names_are_asked_of_others(directory: ServiceStore, name: str) -> None:
    assert isinstance(names(directory).tell(question(name), 0), Delegation)


def test_an_alias_to_the_outside_is_followed_there(directory: ServiceStore) -> None:
    found = names(directory).tell(question("docs.red.svc.cluster.local"), 10)
    assert isinstance(found, Delegation)
    assert (str(found.name), len(found.answer)) == ("www.example.com.", 1)


def test_before_anything_is_known_no_name_is_denied() -> None:
    assert told(names(ServiceStore()), "web.red.svc.cluster.local")[0] == "SERVFAIL"
    assert told(names(ServiceStore()), "5.0.30.172.in-addr.arpa", "PTR")[0] == "SERVFAIL"


def test_what_changes_one_by_one_ends_as_what_is_told_at_once(directory: ServiceStore) -> None:
    stepwise = ServiceStore()
    stepwise.replace([], [])
    stepwise.put_slice(("red", "db-1"), slice_of("db", "red", endpoint("10.128.9.9")))
    stepwise.put_service(("red", "db"), service("red", "db", '{"clusterIP": "172.30.0.77"}'))
    assert told(names(stepwise), "77.0.30.172.in-addr.arpa", "PTR")[0] == "NOERROR"
    stepwise.put_service(("red", "db"), service("red", "db", '{"clusterIP": "None"}'))
    assert told(names(stepwise), "77.0.30.172.in-addr.arpa", "PTR")[0] == "NXDOMAIN"
    assert told(names(stepwise), "9.9.128.10.in-addr.arpa", "PTR")[0] == "NOERROR"
    stepwise.put_slice(("red", "db-1"), slice_of("db", "red", endpoint("10.128.0.2", hostname="db-0")))
    assert told(names(stepwise), "9.9.128.10.in-addr.arpa", "PTR")[0] == "NXDOMAIN"
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NOERROR", "10.128.0.2"]
    stepwise.put_slice(("red", "db-1"), None)
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NOERROR"]
    stepwise.put_service(("red", "db"), None)
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NXDOMAIN"]
    assert vars(stepwise) == vars(ServiceStore()) | {"ready": True, "revision": stepwise.revision}


def test_a_slice_that_is_nobodys_or_of_another_family_is_left_out() -> None:
    made = ServiceStore()
    made.replace([service("red", "db", '{"clusterIP": "None"}')], [])
    made.put_slice(("red", "x"), slice_of("", "red", endpoint("10.128.0.2")))
    assert addresses(made, "db.red.svc.cluster.local") == ["NOERROR"]


def test_of_many_ports_at_many_endpoints_those_are_told_that_a_message_can_hold() -> None:
    """All others cost nothing: there may be a million."""
    ports = ", ".join(f'{{"name": "p{port}", "protocol": "TCP", "port": {port}}}' for port in range(1, 1001))
    rows = [endpoint(f"198.18.{number // 250}.{number % 250}") for number in range(1000)]
    known = ServiceStore()
    known.replace([service("red", "big", '{"clusterIP": "None"}')], [slice_of("big", "red", *rows, ports=f"[{ports}]")])
    every = lookup(("big", "red", "svc"), known, lambda _: True)
    assert every is not None
    assert len(every.addresses) == 1000
    assert len(every.places) == MAX_TARGETS
    one = lookup(("_p1000", "_tcp", "big", "red", "svc"), known, lambda _: True)
    assert one is not None
    assert [place.address for place in one.places] == list(every.addresses)
