"""Health checks of load balancers for a service's endpoints on this node."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address

import aiohttp
import pytest

from sdn.proxy.healthcheck import ServiceHealthServer
from sdn.proxy.service_ports import ServiceState

HERE = IPv4Address("127.0.0.1")


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server((str(HERE), 0)) for _ in range(count)]
    numbers = [int(sock.getsockname()[1]) for sock in taken]
    for sock in taken:
        sock.close()
    return numbers


@pytest.fixture
async def health() -> AsyncIterator[ServiceHealthServer]:
    ports = ServiceHealthServer()
    yield ports
    await ports.close()


async def query(port: int, path: str = "/") -> tuple[int, dict[str, object], str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HERE}:{port}{path}") as answer:
        weight = answer.headers["X-Load-Balancing-Endpoint-Weight"]
        return answer.status, json.loads(await answer.read()), weight


async def test_node_with_local_endpoints_is_healthy(health: ServiceHealthServer) -> None:
    first, other = free_ports(2)
    web = ServiceState(health_port=first, local_endpoint_count=2)
    await health.sync(HERE, {("red", "web"): web, ("red", "db"): ServiceState(health_port=other)})
    service = {"namespace": "red", "name": "web"}
    body = {"service": service, "localEndpoints": 2, "serviceProxyHealthy": True}
    assert await query(first) == await query(first, "/healthz") == (200, body, "2")
    body = {"service": {**service, "name": "db"}, "localEndpoints": 0, "serviceProxyHealthy": True}
    assert await query(other) == (503, body, "0")
    await health.sync(HERE, {("red", "web"): ServiceState(health_port=first)})
    assert (await query(first))[0] == 503
    with pytest.raises(aiohttp.ClientConnectorError):
        await query(other)


async def test_health_check_port_in_use_is_served_once_free(
    health: ServiceHealthServer, caplog: pytest.LogCaptureFixture
) -> None:
    taken = socket.create_server((str(HERE), 0))
    checked = {("red", "web"): ServiceState(health_port=taken.getsockname()[1], local_endpoint_count=1)}
    for _ in range(3):
        await health.sync(HERE, checked)
    assert [record.message for record in caplog.records] == ["health check port not served"]
    port = taken.getsockname()[1]
    taken.close()
    await health.sync(HERE, checked)
    assert (await query(port))[0] == 200
