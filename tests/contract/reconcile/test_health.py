"""The health endpoints of a daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from reconcile.health import HEALTH_LIMITS, REJECTED_CONNECTIONS, Health
from reconcile.health_checks import HealthCheck
from tests.testbed.ports import free_port
from tests.testbed.silent_connections import silent_connections

OK, STUCK = (200, "ok"), "no look at the pods for 200s"
EACH = "[+]ping ok\n[+]log ok\n"


@pytest.fixture
async def problems() -> dict[str, str]:
    return {"network": "", "dns": "", "syncloop": ""}


@pytest.fixture
async def get(problems: dict[str, str]) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    checks = {name: HealthCheck(name, lambda name=name: problems[name]) for name in problems}  # type: ignore[misc]
    address = f"127.0.0.1:{free_port()}"
    health = Health(address, (checks["network"], checks["dns"]), (checks["syncloop"],))
    await health.start()
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            yield get
    finally:
        await health.stop()


async def test_health_and_readiness_are_separate_endpoints(
    problems: dict[str, str], get: Callable[[str], Awaitable[tuple[int, str]]]
) -> None:
    assert (await get("/healthz"), await get("/readyz")) == (OK, (200, "ok\n"))
    problems["dns"] = "port 53 is taken"
    assert (await get("/healthz"), await get("/readyz")) == (OK, (503, "port 53 is taken\n"))
    problems |= {"dns": "", "syncloop": STUCK}
    failed = f"{EACH}[-]syncloop failed: {STUCK}\nhealthz check failed\n"
    assert (await get("/healthz"), await get("/readyz")) == ((500, failed), (200, "ok\n"))
    assert "process_resident_memory_bytes" in (await get("/metrics"))[1]


async def test_each_check_is_listed_and_has_a_path(
    problems: dict[str, str], get: Callable[[str], Awaitable[tuple[int, str]]]
) -> None:
    assert await get("/healthz?verbose") == (200, f"{EACH}[+]syncloop ok\nhealthz check passed\n")
    assert await get("/readyz?verbose") == (200, "[+]ping ok\n[+]network ok\n[+]dns ok\nreadyz check passed\n")
    problems |= {"dns": "port 53 is taken", "syncloop": STUCK}
    listed = "[+]ping ok\n[+]network ok\n[-]dns failed: port 53 is taken\nreadyz check failed\n"
    assert await get("/readyz?verbose") == (503, listed)
    assert await get("/readyz/network") == await get("/healthz/ping") == await get("/healthz/log") == OK
    assert await get("/readyz/dns") == (503, "internal server error: port 53 is taken\n")
    assert await get("/healthz/syncloop") == (500, f"internal server error: {STUCK}\n")
    assert (await get("/readyz/syncloop"))[0] == (await get("/healthz/dns"))[0] == 404


async def test_checks_can_be_excluded(
    problems: dict[str, str], get: Callable[[str], Awaitable[tuple[int, str]]]
) -> None:
    problems["dns"] = "port 53 is taken"
    assert await get("/readyz?exclude=dns") == OK
    assert await get("/readyz?verbose&exclude=dns&exclude=mars") == (
        200,
        "[+]ping ok\n[+]network ok\n[+]dns excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "mars"\nreadyz check passed\n',
    )
    assert (await get("/readyz?exclude=network"))[0] == 503


async def test_health_is_served_during_a_flood_of_connections() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    health = Health(url.removeprefix("http://"), ())
    rejected = REJECTED_CONNECTIONS.labels("per_source")
    before = rejected._value.get()
    await health.start()
    try:
        async with silent_connections(url, ["127.0.0.2"] * (HEALTH_LIMITS.per_source + 20)) as attackers:
            await attackers.wait_until_open(HEALTH_LIMITS.per_source)
            async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
                counted = f'podlane_rejected_connections_total{{reason="per_source"}} {before + 20}'
                assert counted in await answer.text()
    finally:
        await health.stop()
