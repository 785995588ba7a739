"""The services of a namespace → the variables that tell a container of them. Pure.

Source: facts/node.md 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.objects import Pod
from api.services import Service

NO_ADDRESS = ("", "None")
MASTER = ("default", "kubernetes")
"""The service that every container is told of."""


def service_variables(pod: Pod, services: Iterable[Service]) -> dict[str, str]:
    """Of the pod's namespace, unless it wants no links, and of the API server."""
    links = pod.spec.enable_service_links is not False
    chosen: dict[str, Service] = {}
    for one in services:
        place = (one.metadata.namespace, one.metadata.name)
        if one.spec.cluster_ip in NO_ADDRESS or not one.spec.ports:
            continue
        if links and place[0] == pod.metadata.namespace:
            chosen[place[1]] = one
        elif place == MASTER:
            chosen.setdefault(place[1], one)
    return {name: value for key in sorted(chosen) for name, value in _variables(chosen[key])}


def _variables(service: Service) -> Iterator[tuple[str, str]]:
    name, address, ports = _name(service.metadata.name), service.spec.cluster_ip, service.spec.ports
    host = f"[{address}]" if ":" in address else address
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(ports[0].port)
    for port in ports:
        if port.name:
            yield f"{name}_SERVICE_PORT_{_name(port.name)}", str(port.port)
    for number, port in enumerate(ports):
        protocol = (port.protocol or "TCP").lower()
        url = f"{protocol}://{host}:{port.port}"
        prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
        if number == 0:
            yield f"{name}_PORT", url
        yield prefix, url
        yield f"{prefix}_PROTO", protocol
        yield f"{prefix}_PORT", str(port.port)
        yield f"{prefix}_ADDR", address


def _name(text: str) -> str:
    return text.upper().replace("-", "_")
