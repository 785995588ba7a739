"""Services, slices and queries for the tests of the name server."""

from __future__ import annotations

from ipaddress import IPv4Network

import dns.message
import dns.name
import msgspec

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice
from api.core.services import Service
from api.meta.types import ObjectMeta
from nameserver.messages import MAX_TCP_BYTES, Question, decode, encode
from nameserver.resolver import ClusterZone, ForwardedQuestion, ZoneConfig
from nameserver.service_store import ServiceStore

DOMAIN = ZoneConfig(
    dns.name.from_text("cluster.local"), (IPv4Network("10.128.0.0/14"), IPv4Network("172.30.0.0/16")), "10.128.0.1"
)
VNIDS = {"red": 10, "blue": 11, "pink": 10, "default": 0}


def service(namespace: str, name: str, spec: str) -> Service:
    """`spec` is JSON."""
    document = f'{{"metadata": {{"namespace": "{namespace}", "name": "{name}"}}, "spec": {spec}}}'
    return msgspec.json.decode(document, type=Service)


def slice_of(service: str, namespace: str, *endpoints: Endpoint, ports: str = "[]", number: int = 1) -> EndpointSlice:
    """`ports` is JSON."""
    endpoint_slice = msgspec.json.decode(f'{{"addressType": "IPv4", "ports": {ports}}}', type=EndpointSlice)
    meta = ObjectMeta(namespace=namespace, name=f"{service}-{number}", labels={SERVICE_LABEL: service})
    return msgspec.structs.replace(endpoint_slice, metadata=meta, endpoints=endpoints)


def endpoint(address: str, **more: object) -> Endpoint:
    """Return an endpoint, which is ready by default."""
    return msgspec.convert({"addresses": [address], **more}, Endpoint)


def names(directory: ServiceStore, vnids: dict[str, int] | None = VNIDS) -> ClusterZone:
    """Return the zone that a node of the cluster serves."""
    return ClusterZone(directory, DOMAIN, vnids)


def question(name: str, kind: str = "A") -> Question:
    """Return a question as it is decoded from the wire."""
    requested = decode(dns.message.make_query(name, kind).to_wire())
    assert isinstance(requested, Question)
    return requested


def answer_text(known: ClusterZone, name: str, kind: str = "A", vnid: int = 0) -> tuple[str, list[str]]:
    """Return the code and the records of an answer as text: `cluster.local. 5 IN A 10.128.0.2`."""
    query = question(name, kind)
    actual = known.resolve(query, vnid)
    assert not isinstance(actual, ForwardedQuestion), f"{name} is not ours"
    message = dns.message.from_wire(b"\0\0" + encode(query, actual, MAX_TCP_BYTES).joined())
    rows = [line for rrset in message.answer for line in rrset.to_text().splitlines()]
    return dns.rcode.to_text(message.rcode()), rows


WEB = """{"clusterIP": "172.30.0.5", "ports": [
    {"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}
]}"""


PORTS = '[{"name": "sql", "port": 5432, "protocol": "TCP"}]'


NOTHING: list[str] = []


def addresses(directory: ServiceStore, name: str, vnid: int = 0) -> list[str]:
    code, rows = answer_text(names(directory), name, vnid=vnid)
    return [code, *sorted(line.split()[-1] for line in rows)]
