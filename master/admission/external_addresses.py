"""Which external addresses a service may have: those that an operator has set free for it. Pure.

Raises `answers.Failure`. What leads elsewhere is never free: the networks of pods, services and ingress addresses, and
the addresses of nodes. An address and port belong to one service. What an update leaves as it was is not looked at
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from api.core.services import Service
from api.meta.schema import DUPLICATE, FORBIDDEN, FieldError, quoted
from master.kinds.service import SERVICE
from master.wire import answers


@dataclass(frozen=True, slots=True)
class ExternalNetworks:
    """An address is admitted that lies in one of `admitted` and in none of `excluded`."""

    admitted: tuple[IPv4Network, ...] = ()
    excluded: tuple[IPv4Network, ...] = ()

    @classmethod
    def read(cls, texts: Iterable[str]) -> ExternalNetworks:
        """CIDRs; `!` before one excludes it. Raises ValueError."""
        texts = tuple(texts)
        return cls(
            tuple(IPv4Network(text) for text in texts if not text.startswith("!")),
            tuple(IPv4Network(text[1:].strip()) for text in texts if text.startswith("!")),
        )

    def __str__(self) -> str:
        admitted = ", ".join(map(str, self.admitted))
        if not admitted:
            return "the setting externalIPNetworkCIDRs admits none"
        excluded = ", ".join(map(str, self.excluded))
        return f"an address in {admitted}{f' but not in {excluded}' if excluded else ''} is accepted"

    def admits(self, address: IPv4Address) -> bool:
        """Whether a service may have it."""
        if any(address in network for network in self.excluded):
            return False
        return any(address in network for network in self.admitted)


NO_NETWORKS = ExternalNetworks()


def check(
    service: Service,
    old: Service | None,
    others: Sequence[Service],
    networks: ExternalNetworks,
    reserved: Mapping[IPv4Network, str],
) -> None:
    """`others` are all other services; `reserved` says of networks that are not to be had whose they are."""
    known = set(old.spec.external_ips) if old is not None else set()
    problems = [
        FieldError(f"spec.externalIPs[{place}]", quoted(text), f"externalIP is not allowed: {why}", FORBIDDEN)
        for place, text in enumerate(service.spec.external_ips)
        if text not in known and (why := _refusal(IPv4Address(text), networks, reserved))
    ]
    problems += _clashes(service, old, others)
    if problems:
        raise answers.invalid(SERVICE, service.metadata.name, problems)


def _refusal(address: IPv4Address, networks: ExternalNetworks, reserved: Mapping[IPv4Network, str]) -> str:
    """Empty if the address is to be had."""
    whose = next((text for network, text in reserved.items() if address in network), "")
    if whose:
        return f"it is {whose}"
    return "" if networks.admits(address) else str(networks)


def _clashes(service: Service, old: Service | None, others: Sequence[Service]) -> Iterator[FieldError]:
    wanted = _fronts(service)
    for front in _fronts(old) if old is not None else ():
        wanted.pop(front, None)
    if not wanted:
        return
    for other in others:
        for front in wanted.keys() & _fronts(other).keys():
            address, port, protocol = front
            why = f"service {other.metadata.namespace}/{other.metadata.name} has port {port}/{protocol} of it"
            yield FieldError(f"spec.externalIPs[{wanted[front]}]", quoted(address), why, DUPLICATE)


def _fronts(service: Service) -> dict[tuple[str, int, str], int]:
    """Each external address with each port → the place of the address."""
    spec = service.spec
    return {
        (text, port.port, port.protocol): place for place, text in enumerate(spec.external_ips) for port in spec.ports
    }
