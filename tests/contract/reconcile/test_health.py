"""The health endpoints of a daemon."""

from __future__ import annotations

import aiohttp
import pytest

from reconcile.health import Health
from tests.testbed.ports import free_port


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
