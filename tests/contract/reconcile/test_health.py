"""The health endpoints of a daemon."""

from __future__ import annotations

import aiohttp
import pytest

from reconcile.health import HEALTH_LIMITS, Health
from tests.testbed.ports import free_port
from tests.testbed.silent_connections import silent_connections


@pytest.mark.parametrize(
    ("unready", "stuck", "healthz", "readyz"),
    [
        ("", "", (200, "ok"), (200, "ok\n")),
        ("no network yet", "", (200, "ok"), (503, "no network yet\n")),
        ("", "no look at the pods for 200s", (500, "no look at the pods for 200s"), (200, "ok\n")),
    ],
)
async def test_health_and_readiness_are_separate_endpoints(
    unready: str, stuck: str, healthz: tuple[int, str], readyz: tuple[int, str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    health = Health(address, lambda: unready, lambda: stuck)
    await health.start()
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session:
            for path in ("/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"):
                async with session.get(path) as answer:
                    assert (answer.status, await answer.text()) == healthz
            async with session.get("/readyz") as answer:
                assert (answer.status, await answer.text()) == readyz
            async with session.get("/metrics") as answer:
                assert "process_resident_memory_bytes" in await answer.text()
    finally:
        await health.stop()


async def test_health_is_served_during_a_flood_of_connections() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    health = Health(url.removeprefix("http://"), str)
    await health.start()
    try:
        async with silent_connections(url, ["127.0.0.2"] * (HEALTH_LIMITS.per_source + 20)) as attackers:
            await attackers.wait_until_open(HEALTH_LIMITS.per_source)
            async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
                assert 'podlane_rejected_connections_total{reason="per_source"} 20.0' in await answer.text()
    finally:
        await health.stop()
