"""Checks of aggregated API servers: one that fails in an unexpected way, or goes at any moment, ends no other check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.meta.types import ObjectMeta
from master.registry.aggregated_apis import AggregatedAPIs
from master.resources.api_services import APIService, APIServiceReference, APIServiceSpec
from master.server.proxy import api_checks
from master.server.proxy.api_checks import APIChecks
from master.server.proxy.extension_client import ServerResponse
from tests.testbed.apiserver.api_service_store import APIServiceStore

LIST = b'{"groupVersion": "", "resources": []}'


class Extensions:
    """A client of servers: that of the group bad.io raises what no client raises."""

    async def request(self, service: Any, url: str, *_: Any, **__: Any) -> ServerResponse:
        if "bad" in url:
            raise ZeroDivisionError
        return ServerResponse(200, LIST)


def api(group: str, uid: str = "1") -> APIService:
    return APIService(
        metadata=ObjectMeta(name=f"v1.{group}", uid=uid),
        spec=APIServiceSpec(
            service=APIServiceReference(namespace="ns", name="svc", port=443), group=group, version="v1"
        ),
    )


@asynccontextmanager
async def checking(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[APIServiceStore, AggregatedAPIs, asyncio.Task[None]]]:
    monkeypatch.setattr(api_checks, "service_problem", lambda store, backend: None)
    monkeypatch.setattr(api_checks, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(api_checks, "RECHECK_SECONDS", 0.001)
    store: Any = APIServiceStore()
    apis = AggregatedAPIs(store)
    apis.load()
    extensions: Any = Extensions()
    task = asyncio.create_task(APIChecks(store, apis, extensions, Path(), lambda: None).run())
    try:
        yield store, apis, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not good():
            await asyncio.sleep(0.001)


async def test_unexpected_error_is_a_failed_check_and_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with checking(monkeypatch) as (store, apis, _):
        for group in ("bad.example.org", "good.example.org"):
            store.put(api(group))
        await until(lambda: apis.availability("v1.good.example.org") is not None)
        await until(lambda: apis.availability("v1.bad.example.org") is not None)
        bad, good = (apis.availability(f"v1.{name}.example.org") for name in ("bad", "good"))
        assert bad is not None
        assert good is not None
        assert (bad.reason, good.reason) == ("FailedDiscoveryCheck", "Passed")
        assert bad.message.endswith("ZeroDivisionError")


async def test_api_that_comes_and_goes_all_the_time_is_checked_while_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with checking(monkeypatch) as (store, apis, task):
        for number in range(300):
            store.put(api("g.example.org", str(number)))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            if number % 3:
                await asyncio.sleep(0.001)
            store.delete(api("g.example.org", str(number)))
            for _ in range(number % 5):
                await asyncio.sleep(0)
        assert not task.done()
        store.put(api("g.example.org", "last"))
        await until(lambda: apis.availability("v1.g.example.org") is not None)
        store.delete(api("g.example.org", "last"))
        await until(lambda: len(store.watches) == 1)  # Without another server only APIServices are watched.
        assert not task.done()
