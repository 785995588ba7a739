"""Resolves questions for names of the cluster, for one client. Pure."""

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
"""Who is in it may know all names, and its names may be known by all."""

UNKNOWN_CLIENT = -1
"""The lane of who is not known: only names of the global lane are for him."""

MAX_CNAME_CHAIN = 8
MAX_HOSTS = 32
"""Addresses that are told along with ports, unasked."""

REVERSE = dns.name.from_text("in-addr.arpa.")
SERVER: Labels = ("ns", "dns")
NO_SUCH_NAME, FAILED = dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL


@dataclass(frozen=True, slots=True)
class Delegation:
    """Others know the rest of the answer: what `name` is; `answer` is the way to it."""

    name: dns.name.Name
    answer: tuple[dns.rrset.RRset, ...] = ()


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    """What is ours: all below `origin`, and the addresses of `networks`. `server` is the address of who answers."""

    origin: dns.name.Name
    networks: tuple[IPv4Network, ...] = ()
    server: str = ""


@dataclass(frozen=True, slots=True)
class ClusterZone:
    """What may be told. `lanes` is the VNID of each namespace, None where everybody may know everything."""

    directory: ServiceStore
    domain: ZoneConfig
    lanes: Mapping[str, int] | None = None

    def may(self, lane: int, namespace: str) -> bool:
        """Whether the lane reaches the namespace, so that it may know its names."""
        if self.lanes is None or lane == GLOBAL_VNID:
            return True
        other = self.lanes.get(namespace)
        return other is not None and other in (GLOBAL_VNID, lane)

    def tell(self, question: Question, lane: int) -> Response | Delegation:
        """What is told to somebody of a lane, or where else he finds it."""
        if question.name.is_subdomain(self.domain.origin):
            return self._forward(question, lane) if self.directory.ready else Response(FAILED)
        if question.name.is_subdomain(REVERSE):
            return self._reverse(question, lane)
        return Delegation(question.name)

    def _forward(self, question: Question, lane: int) -> Response | Delegation:
        name = question.name
        aliases: list[dns.rrset.RRset] = []
        for _ in range(MAX_CNAME_CHAIN):
            if not name.is_subdomain(self.domain.origin):
                return Delegation(name, tuple(aliases))
            found = self._meaning(name, lane)
            if found is None or not found.alias:
                return self._told(name, question.type, found, tuple(aliases))
            try:
                target = dns.name.from_text(found.alias)
            except dns.exception.DNSException:
                return Response(FAILED)
            aliases.append(_rrset(name, CNAME, (target.to_text(),)))
            if question.type in (CNAME, ANY):
                return Response(answer=tuple(aliases), is_ours=True)
            name = target
        return Response(FAILED)

    def _meaning(self, name: dns.name.Name, lane: int) -> Records | None:
        own = name.labels[: len(name.labels) - len(self.domain.origin.labels)]
        try:
            labels = tuple(label.decode("ascii").lower() for label in own)
        except UnicodeDecodeError:
            return None
        if labels == SERVER and self.domain.server:
            return Records(addresses=(self.domain.server,))
        return lookup(labels, self.directory, partial(self.may, lane))

    def _told(
        self, name: dns.name.Name, kind: int, found: Records | None, aliases: tuple[dns.rrset.RRset, ...]
    ) -> Response:
        soa = self._soa(self.domain.origin)
        nothing = Response(answer=aliases, authority=(soa,), is_ours=True)
        if found is None:
            return replace(nothing, rcode=NO_SUCH_NAME)
        full = replace(nothing, authority=())
        if kind in (A, ANY) and found.addresses:
            return replace(full, owner=name, addresses=found.addresses)
        if kind == SRV and found.places:
            return replace(full, answer=(*aliases, self._places(name, found)), additional=self._hosts(found.places))
        rows = []
        if kind in (TXT, ANY) and found.text:
            rows = [_rrset(name, TXT, (f'"{found.text}"',))]
        elif kind in (SOA, ANY) and name == self.domain.origin:
            rows = [soa]
        elif kind == NS and name == self.domain.origin:
            rows = [_rrset(name, NS, (self._below(SERVER).to_text(),))]
        return replace(full, answer=(*aliases, *rows)) if rows else nothing

    def _places(self, name: dns.name.Name, found: Records) -> dns.rrset.RRset:
        weight = max(1, 100 // len(found.places))
        rows = [dns.rdtypes.IN.SRV.SRV(IN, SRV, 0, weight, one.port, self._below(one.target)) for one in found.places]
        return dns.rrset.from_rdata_list(name, TTL_SECONDS, rows)

    def _hosts(self, places: Iterable[SrvTarget]) -> tuple[dns.rrset.RRset, ...]:
        known = list(dict.fromkeys((one.target, one.address) for one in places))[:MAX_HOSTS]
        return tuple(_rrset(self._below(target), A, (address,)) for target, address in known)

    def _reverse(self, question: Question, lane: int) -> Response | Delegation:
        """An address of ours has the names that lead to it; what is no whole address has none."""
        network = _network(question.name)
        ours = next((one for one in self.domain.networks if network is not None and network.subnet_of(one)), None)
        if network is None or ours is None:
            return Delegation(question.name)
        if not self.directory.ready:
            return Response(FAILED)
        nothing = Response(authority=(self._soa(_zone_of(ours, network)),), is_ours=True)
        if network.prefixlen < 32:
            return nothing
        found = reverse_lookup(str(network.network_address), self.directory, partial(self.may, lane))
        if not found:
            return replace(nothing, rcode=NO_SUCH_NAME)
        if question.type not in (PTR, ANY):
            return nothing
        return replace(nothing, authority=(), answer=(_rrset(question.name, PTR, map(self._text, found)),))

    def _text(self, labels: Labels) -> str:
        return self._below(labels).to_text()

    def _below(self, labels: Labels) -> dns.name.Name:
        return dns.name.Name((*(label.encode() for label in labels), *self.domain.origin.labels))

    def _soa(self, zone: dns.name.Name) -> dns.rrset.RRset:
        server = self._below(SERVER)
        contact = dns.name.Name((b"hostmaster", *self.domain.origin.labels))
        serial = self.directory.revision & 0xFFFFFFFF
        soa = dns.rdtypes.ANY.SOA.SOA(IN, SOA, server, contact, serial, 7200, 1800, 86400, TTL_SECONDS)
        return dns.rrset.from_rdata(zone, TTL_SECONDS, soa)


def _rrset(name: dns.name.Name, kind: dns.rdatatype.RdataType, rows: Iterable[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, TTL_SECONDS, IN, kind, list(rows))


def _network(name: dns.name.Name) -> IPv4Network | None:
    """What a name below in-addr.arpa stands for: an address, or all that begin so; None if it is neither."""
    labels = name.labels[: len(name.labels) - len(REVERSE.labels)]
    octets = [label.decode("ascii", "replace") for label in reversed(labels)]
    if not 1 <= len(octets) <= 4:
        return None
    try:
        return IPv4Network((".".join([*octets, *["0"] * (4 - len(octets))]), 8 * len(octets)))
    except ValueError:
        return None


def _zone_of(ours: IPv4Network, network: IPv4Network) -> dns.name.Name:
    """The name of that part of ours, cut at an octet, in which an address lies."""
    octets = str(network.network_address).split(".")[: max(1, -(-ours.prefixlen // 8))]
    return dns.name.from_text(".".join(reversed(octets)), REVERSE)
