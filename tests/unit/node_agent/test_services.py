"""Pods wait until it is known which services there are; static ones do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from api.validation.static_pods import CONFIG_SOURCE
from node_agent.object_cache import NotSynced, ServiceLister
from reconcile.errors import NotReady
from tests.unit.node_agent.make import pod
from tests.unit.node_agent.object_server import ObjectServer

STATIC = pod()
POD = replace(STATIC, metadata=replace(STATIC.metadata, annotations={CONFIG_SOURCE: "api"}))


async def follow(refusal: int, until: Callable[[ServiceLister], bool]) -> tuple[ServiceLister, int]:
    """The services as far as an API server tells of them, and how often somebody was woken."""
    server, woken = ObjectServer(), list[None]()
    server.refusal = refusal
    async with server.client() as client:
        services = ServiceLister(client, lambda: woken.append(None))
        with pytest.raises(NotSynced):
            services.known(POD)
        task = asyncio.create_task(services.mirror.run())
        async with asyncio.timeout(10):
            while not until(services):
                await asyncio.sleep(0.001)
        task.cancel()
    return services, len(woken)


@pytest.mark.parametrize("refusal", [0, 404], ids=["none", "no such kind"])
async def test_where_there_are_none_pods_go_on(refusal: int) -> None:
    services, woken = await follow(refusal, lambda one: one.mirror.synced)
    assert (list(services.known(POD)), woken) == ([], 1)


async def test_who_may_not_know_waits_and_says_so_but_for_static_pods() -> None:
    services, woken = await follow(403, lambda one: bool(one.mirror.last_error))
    with pytest.raises(NotReady, match="services: not for you"):
        services.known(POD)
    assert (list(services.known(STATIC)), woken) == ([], 0)
