"""Answers: which clients see which names, and which queries are forwarded."""

from __future__ import annotations

import pytest

from nameserver.resolver import UNKNOWN_CLIENT, ForwardedQuestion
from nameserver.service_store import ServiceStore
from nameserver.zone import MAX_TARGETS, lookup
from tests.unit.nameserver.examples import NOTHING, addresses, answer_text, endpoint, names, question, service, slice_of


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
def test_names_of_a_project_are_unknown_to_other_projects(directory: ServiceStore, name: str, kind: str) -> None:
    known = names(directory)
    assert answer_text(known, name, kind, vnid=11) == ("NXDOMAIN", NOTHING)
    assert answer_text(known, name, kind, vnid=UNKNOWN_CLIENT) == ("NXDOMAIN", NOTHING)
    for vnid in (0, 10):
        assert answer_text(known, name, kind, vnid=vnid)[0] == "NOERROR"
    assert answer_text(names(directory, None), name, kind, vnid=11)[0] == "NOERROR", "one flat network"


def test_external_name_does_not_resolve_into_another_project(directory: ServiceStore) -> None:
    spy = service("blue", "spy", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}')
    directory.put_service(("blue", "spy"), spy)
    code, rows = answer_text(names(directory), "spy.blue.svc.cluster.local", vnid=11)
    assert (code, [line.split()[3] for line in rows]) == ("NXDOMAIN", ["CNAME"])


def test_names_of_global_projects_are_known_to_all(directory: ServiceStore) -> None:
    for vnid in (UNKNOWN_CLIENT, 0, 10, 11):
        assert addresses(directory, "web.default.svc.cluster.local", vnid) == ["NOERROR", "172.30.0.8"]


def test_joined_projects_resolve_each_others_names(directory: ServiceStore) -> None:
    assert addresses(directory, "web.pink.svc.cluster.local", vnid=10) == ["NOERROR", "172.30.0.7"]


@pytest.mark.parametrize("name", ["example.com", "1.0.0.127.in-addr.arpa", "local", "1.0.31.172.in-addr.arpa"])
def test_external_names_are_forwarded(directory: ServiceStore, name: str) -> None:
    assert isinstance(names(directory).resolve(question(name), 0), ForwardedQuestion)


def test_external_name_outside_the_cluster_is_forwarded(directory: ServiceStore) -> None:
    actual = names(directory).resolve(question("docs.red.svc.cluster.local"), 10)
    assert isinstance(actual, ForwardedQuestion)
    assert (str(actual.name), len(actual.answer)) == ("www.example.com.", 1)


def test_unsynced_store_answers_servfail() -> None:
    assert answer_text(names(ServiceStore()), "web.red.svc.cluster.local")[0] == "SERVFAIL"
    assert answer_text(names(ServiceStore()), "5.0.30.172.in-addr.arpa", "PTR")[0] == "SERVFAIL"


def test_srv_answer_contains_as_many_records_as_a_message_holds() -> None:
    """All others cost nothing: there may be a million."""
    ports = ", ".join(f'{{"name": "p{port}", "protocol": "TCP", "port": {port}}}' for port in range(1, 1001))
    endpoints = [endpoint(f"198.18.{number // 250}.{number % 250}") for number in range(1000)]
    known = ServiceStore()
    known.replace(
        [service("red", "big", '{"clusterIP": "None"}')], [slice_of("big", "red", *endpoints, ports=f"[{ports}]")]
    )
    every = lookup(("big", "red", "svc"), known, lambda _: True)
    assert every is not None
    assert len(every.addresses) == 1000
    assert len(every.targets) == MAX_TARGETS
    records = lookup(("_p1000", "_tcp", "big", "red", "svc"), known, lambda _: True)
    assert records is not None
    assert [target.address for target in records.targets] == list(every.addresses)
