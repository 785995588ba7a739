"""What a lab relays for its nodes, and what an internal one refuses them."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from lab.relay import REFUSAL, Endpoint, lab_endpoints, refuse_requests
from lab.topology import Lab, Site
from node_agent.docker.http import TRANSIENT_ERRORS

SITE = Site("podx", IPv4Network("10.245.9.0/24"))


@pytest.mark.parametrize(
    ("registry", "expected"),
    [(False, ["refuse:127.0.0.1:9"]), (True, ["tcp:127.0.0.1:5000", "refuse:127.0.0.1:9"])],
)
def test_an_internal_lab_relays_its_registry_only(registry: bool, expected: list[str]) -> None:
    lab = Lab(SITE, Path("/nowhere"), Path("/bin"), 1, "ovs-multitenant", internal=True, registry=registry)
    assert list(map(str, lab_endpoints(lab))) == expected


def test_nodes_of_an_internal_lab_use_the_images_that_they_have() -> None:
    assert any(text in REFUSAL for text in TRANSIENT_ERRORS)


async def test_the_proxy_of_an_internal_lab_says_why_it_refuses() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(refuse_requests(listener, Endpoint("refuse", "127.0.0.1", 9)))
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"CONNECT registry.example:443 HTTP/1.1\r\nHost: registry.example:443\r\n\r\n")
        status, _, rest = (await reader.read()).decode().partition("\r\n")
        writer.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert status == f"HTTP/1.1 403 {REFUSAL}"
    assert REFUSAL in rest
