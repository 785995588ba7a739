"""A process for `bench.name_server`: a name server, or a plain UDP echo in Python.

`python -m bench.name_server_process names|echo SERVICES` prints its port, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from ipaddress import IPv4Address, IPv4Network

import dns.name

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from nameserver.resolver import ClusterZone, ZoneConfig
from nameserver.server import NameServer
from nameserver.service_store import ServiceStore

ENDPOINTS = 10
FIRST = IPv4Address("172.30.0.1")


def main() -> int:
    """Print the port, then serve until killed."""
    if sys.argv[1] == "names":
        asyncio.run(_names(int(sys.argv[2])))
    else:
        _echo()
    return 0


def services(count: int) -> list[Service]:
    """Return the services, of which one in ten is headless."""
    ports = (ServicePort(port=80, name="http", protocol="TCP"),)
    return [
        Service(
            metadata=ObjectMeta(name=f"s{number}", namespace=f"n{number % 100}"),
            spec=ServiceSpec(cluster_ip="None" if number % 10 == 9 else str(FIRST + number), ports=ports),
        )
        for number in range(count)
    ]


def slices(count: int) -> list[EndpointSlice]:
    """Return the EndpointSlices of these services, with ten endpoints each."""
    first = IPv4Address("10.128.0.2")
    return [
        EndpointSlice(
            metadata=ObjectMeta(
                name=f"s{number}-1", namespace=f"n{number % 100}", labels={SERVICE_LABEL: f"s{number}"}
            ),
            address_type="IPv4",
            endpoints=tuple(
                Endpoint(addresses=(str(first + number * ENDPOINTS + index),)) for index in range(ENDPOINTS)
            ),
        )
        for number in range(count)
    ]


async def _names(count: int) -> None:
    directory = ServiceStore()
    directory.replace(services(count), slices(count))
    domain = ZoneConfig(
        dns.name.from_text("cluster.local"), (IPv4Network("10.128.0.0/14"), IPv4Network("172.30.0.0/16"))
    )
    server = NameServer(ClusterZone(directory, domain), lambda _: 0)
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


def _echo() -> None:
    """Echo each datagram."""
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    print(udp.getsockname()[1], flush=True)
    while True:
        packet, pair = udp.recvfrom(4096)
        udp.sendto(packet, pair)


if __name__ == "__main__":
    sys.exit(main())
