"""How a pod names itself and resolves names, and which ports of its host lead to it: shapes and problems. Pure.

Source: facts/node.md 4, 5.2 and 17.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING

import msgspec

from api import names
from api.schema import DUPLICATE, FORBIDDEN, MISSING, Problem, shown
from api.value import Value

if TYPE_CHECKING:
    from api.objects import ContainerPort, PodSpec

MOST_NAMESERVERS, MOST_SEARCHES, LONGEST_SEARCH = 3, 32, 2048


class HostAlias(Value, frozen=True):
    """A line for the pod's /etc/hosts."""

    ip: str
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(Value, frozen=True):
    """`name:value` in resolv.conf, or `name` alone."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Value, frozen=True):
    """What is added to the resolv.conf that the pod's policy gives."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = msgspec.field(default=())


def check(spec: PodSpec) -> Iterator[Problem]:
    """Every problem, by path."""
    if spec.subdomain and names.dns_label(spec.subdomain):
        yield Problem("spec.subdomain", shown(spec.subdomain), names.dns_label(spec.subdomain))
    if spec.host_pid and spec.share_process_namespace:
        yield Problem("spec.shareProcessNamespace", "true", "only false is accepted with hostPID", FORBIDDEN)
    for number, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{number}]"
        yield from _address(f"{path}.ip", alias.ip)
        for place, name in enumerate(alias.hostnames):
            if names.dns_subdomain(name):
                yield Problem(f"{path}.hostnames[{place}]", shown(name), names.dns_subdomain(name))
    yield from _dns("spec.dnsConfig", spec)
    yield from _host_ports(spec)


def _dns(path: str, spec: PodSpec) -> Iterator[Problem]:
    config = spec.dns_config or PodDNSConfig()
    if spec.dns_policy == "None" and not config.nameservers:
        wanted = "at least one is required with dnsPolicy None"
        yield Problem(f"{path}.nameservers", "[]", wanted, MISSING)
    if len(config.nameservers) > MOST_NAMESERVERS:
        found = str(len(config.nameservers))
        yield Problem(f"{path}.nameservers", found, f"at most {MOST_NAMESERVERS} are accepted")
    for number, server in enumerate(config.nameservers):
        yield from _address(f"{path}.nameservers[{number}]", server)
    if len(config.searches) > MOST_SEARCHES or len(" ".join(config.searches)) > LONGEST_SEARCH:
        found = f"{len(config.searches)} of {len(' '.join(config.searches))} characters"
        wanted = f"at most {MOST_SEARCHES} of together {LONGEST_SEARCH} characters are accepted"
        yield Problem(f"{path}.searches", found, wanted)
    for number, domain in enumerate(config.searches):
        bare = domain.rstrip(".")
        if bare and names.dns_subdomain(bare.replace("_", "-")):
            yield Problem(f"{path}.searches[{number}]", shown(domain), names.dns_subdomain(bare))
    for number, option in enumerate(config.options):
        if not option.name:
            yield Problem(f"{path}.options[{number}].name", '""', "a name is required", MISSING)


def _host_ports(spec: PodSpec) -> Iterator[Problem]:
    taken: set[tuple[int, str, str]] = set()
    for kind, rows in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(rows):
            for place, port in enumerate(container.ports):
                path = f"spec.{kind}[{number}].ports[{place}]"
                yield from _host_port(path, port, spec.host_network)
                key = (port.host_port, port.protocol or "TCP", port.host_ip)
                if port.host_port and key in taken:
                    yield Problem(f"{path}.hostPort", shown(port.host_port), "must be unique", DUPLICATE)
                taken.add(key)


def _host_port(path: str, port: ContainerPort, host_network: bool) -> Iterator[Problem]:
    if port.host_ip:
        yield from _address(f"{path}.hostIP", port.host_ip)
    if host_network and port.host_port not in {0, port.container_port}:
        wanted = f"must equal containerPort, {port.container_port}, with hostNetwork"
        yield Problem(f"{path}.hostPort", shown(port.host_port), wanted)


def _address(path: str, text: str) -> Iterator[Problem]:
    try:
        ip_address(text)
    except ValueError:
        yield Problem(path, shown(text), "an IP address is accepted")
