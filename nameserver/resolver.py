"""Resolves questions about names of the cluster for a client with a VNID. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Network

import dns.exception
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rdtypes.ANY.SOA
import dns.rdtypes.IN.SRV
import dns.rrset
from dns.rdataclass import IN
from dns.rdatatype import ANY, CNAME, NS, PTR, SOA, SRV, TXT, A

from nameserver.messages import TTL_SECONDS, Question, Response
from nameserver.service_store import ServiceStore
from nameserver.zone import Labels, Records, SrvTarget, lookup, reverse_lookup

GLOBAL_VNID = 0
"""Clients of this VNID see the names of all projects, and the names of its projects are visible to all clients."""

UNKNOWN_CLIENT = -1
"""VNID of clients that are not known: they see the names of global projects only."""

MAX_CNAME_CHAIN = 8

MAX_ADDITIONAL_HOSTS = 32
"""Maximum number of addresses that are added to an answer with SRV records."""

REVERSE = dns.name.from_text("in-addr.arpa.")
SERVER: Labels = ("ns", "dns")
NO_SUCH_NAME, FAILED = dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL


@dataclass(frozen=True, slots=True)
class ForwardedQuestion:
    """A question for other servers: `name` is to be resolved there; `answer` has the CNAMEs that lead to it."""

    name: dns.name.Name
    answer: tuple[dns.rrset.RRset, ...] = ()


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    """The zones of the cluster: all names below `origin`, and the reverse names of `networks`.

    `server` is the address of the name server.
    """

    origin: dns.name.Name
    networks: tuple[IPv4Network, ...] = ()
    server: str = ""


@dataclass(frozen=True, slots=True)
class ClusterZone:
    """The names of a cluster. `vnids` has the VNID of each namespace, and is None if all names are visible to all."""

    store: ServiceStore
    config: ZoneConfig
    vnids: Mapping[str, int] | None = None

    def is_visible(self, vnid: int, namespace: str) -> bool:
        """Return True if clients with a VNID reach the namespace, so that they see its names."""
        if self.vnids is None or vnid == GLOBAL_VNID:
            return True
        other = self.vnids.get(namespace)
        return other is not None and other in (GLOBAL_VNID, vnid)

    def resolve(self, question: Question, vnid: int) -> Response | ForwardedQuestion:
        """Resolve a question for a client with this VNID, or return the name to forward."""
        if question.name.is_subdomain(self.config.origin):
            return self._forward_lookup(question, vnid) if self.store.ready else Response(FAILED)
        if question.name.is_subdomain(REVERSE):
            return self._reverse_lookup(question, vnid)
        return ForwardedQuestion(question.name)

    def _forward_lookup(self, question: Question, vnid: int) -> Response | ForwardedQuestion:
        name = question.name
        aliases: list[dns.rrset.RRset] = []
        for _ in range(MAX_CNAME_CHAIN):
            if not name.is_subdomain(self.config.origin):
                return ForwardedQuestion(name, tuple(aliases))
            records = self._lookup(name, vnid)
            if records is None or not records.alias:
                return self._records(name, question.type, records, tuple(aliases))
            try:
                target = dns.name.from_text(records.alias)
            except dns.exception.DNSException:
                return Response(FAILED)
            aliases.append(_rrset(name, CNAME, (target.to_text(),)))
            if question.type in (CNAME, ANY):
                return Response(answer=tuple(aliases), is_authoritative=True)
            name = target
        return Response(FAILED)

    def _lookup(self, name: dns.name.Name, vnid: int) -> Records | None:
        own = name.labels[: len(name.labels) - len(self.config.origin.labels)]
        try:
            labels = tuple(label.decode("ascii").lower() for label in own)
        except UnicodeDecodeError:
            return None
        if labels == SERVER and self.config.server:
            return Records(addresses=(self.config.server,))
        return lookup(labels, self.store, partial(self.is_visible, vnid))

    def _records(
        self, name: dns.name.Name, kind: int, records: Records | None, aliases: tuple[dns.rrset.RRset, ...]
    ) -> Response:
        """Return the response with the records of a type; without such records, the SOA record (RFC 2308)."""
        soa = self._soa(self.config.origin)
        empty = Response(answer=aliases, authority=(soa,), is_authoritative=True)
        if records is None:
            return replace(empty, rcode=NO_SUCH_NAME)
        full = replace(empty, authority=())
        if kind in (A, ANY) and records.addresses:
            return replace(full, owner=name, addresses=records.addresses)
        if kind == SRV and records.targets:
            additional = self._additional_hosts(records.targets)
            return replace(full, answer=(*aliases, self._srv_records(name, records)), additional=additional)
        rrsets = []
        if kind in (TXT, ANY) and records.text:
            rrsets = [_rrset(name, TXT, (f'"{records.text}"',))]
        elif kind in (SOA, ANY) and name == self.config.origin:
            rrsets = [soa]
        elif kind == NS and name == self.config.origin:
            rrsets = [_rrset(name, NS, (self._absolute(SERVER).to_text(),))]
        return replace(full, answer=(*aliases, *rrsets)) if rrsets else empty

    def _srv_records(self, name: dns.name.Name, records: Records) -> dns.rrset.RRset:
        weight = max(1, 100 // len(records.targets))
        rdatas = [
            dns.rdtypes.IN.SRV.SRV(IN, SRV, 0, weight, target.port, self._absolute(target.host))
            for target in records.targets
        ]
        return dns.rrset.from_rdata_list(name, TTL_SECONDS, rdatas)

    def _additional_hosts(self, targets: Iterable[SrvTarget]) -> tuple[dns.rrset.RRset, ...]:
        hosts = list(dict.fromkeys((target.host, target.address) for target in targets))[:MAX_ADDITIONAL_HOSTS]
        return tuple(_rrset(self._absolute(host), A, (address,)) for host, address in hosts)

    def _reverse_lookup(self, question: Question, vnid: int) -> Response | ForwardedQuestion:
        """Resolve a reverse name. A name that stands for more than one address has no records."""
        network = _network(question.name)
        ours = None
        if network is not None:
            ours = next((candidate for candidate in self.config.networks if network.subnet_of(candidate)), None)
        if network is None or ours is None:
            return ForwardedQuestion(question.name)
        if not self.store.ready:
            return Response(FAILED)
        empty = Response(authority=(self._soa(_reverse_zone(ours, network)),), is_authoritative=True)
        if network.prefixlen < 32:
            return empty
        names = reverse_lookup(str(network.network_address), self.store, partial(self.is_visible, vnid))
        if not names:
            return replace(empty, rcode=NO_SUCH_NAME)
        if question.type not in (PTR, ANY):
            return empty
        texts = [self._absolute(labels).to_text() for labels in names]
        return replace(empty, authority=(), answer=(_rrset(question.name, PTR, texts),))

    def _absolute(self, labels: Labels) -> dns.name.Name:
        return dns.name.Name((*(label.encode() for label in labels), *self.config.origin.labels))

    def _soa(self, zone: dns.name.Name) -> dns.rrset.RRset:
        server = self._absolute(SERVER)
        contact = dns.name.Name((b"hostmaster", *self.config.origin.labels))
        serial = self.store.revision & 0xFFFFFFFF
        soa = dns.rdtypes.ANY.SOA.SOA(IN, SOA, server, contact, serial, 7200, 1800, 86400, TTL_SECONDS)
        return dns.rrset.from_rdata(zone, TTL_SECONDS, soa)


def _rrset(name: dns.name.Name, kind: dns.rdatatype.RdataType, texts: Iterable[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, TTL_SECONDS, IN, kind, list(texts))


def _network(name: dns.name.Name) -> IPv4Network | None:
    """Return the address or the network of a name below in-addr.arpa, or None for other names."""
    labels = name.labels[: len(name.labels) - len(REVERSE.labels)]
    octets = [label.decode("ascii", "replace") for label in reversed(labels)]
    if not 1 <= len(octets) <= 4:
        return None
    try:
        return IPv4Network((".".join([*octets, *["0"] * (4 - len(octets))]), 8 * len(octets)))
    except ValueError:
        return None


def _reverse_zone(ours: IPv4Network, network: IPv4Network) -> dns.name.Name:
    """Return the reverse zone of a part of our network: the network's prefix is rounded up to whole octets."""
    octets = str(network.network_address).split(".")[: max(1, -(-ours.prefixlen // 8))]
    return dns.name.from_text(".".join(reversed(octets)), REVERSE)
