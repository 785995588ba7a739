"""One of several candidates leads, and notices when it no longer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from api.client.client import AlreadyExists, Client, Conflict, NotFound, Unreachable
from api.core.node import Lease
from api.meta.types import Object, Status
from master.network_controller import leader_election
from master.network_controller.leader_election import LEASE_SECONDS, RENEW_DEADLINE_SECONDS, LeaderElection
from reconcile.errors import NotReady


class Leases(Client):
    """An API server with one lease for all clients. It does not respond while `away` is set."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.away = False
        self.revision = 0

    async def get(self, kind: type[Object], name: str, namespace: str = "") -> Lease:  # type: ignore[override]
        if self.away:
            raise Unreachable("away")
        if self.lease is None:
            raise NotFound(Status(code=404))
        return self.lease

    async def create(self, obj: Lease) -> Lease:  # type: ignore[override]
        if self.lease is not None:
            raise AlreadyExists(Status(code=409))
        return self._store(obj)

    async def update(self, obj: Lease) -> Lease:  # type: ignore[override]
        if self.lease is None or obj.metadata.resource_version != self.lease.metadata.resource_version:
            raise Conflict(Status(code=409))
        return self._store(obj)

    def _store(self, obj: Lease) -> Lease:
        self.revision += 1
        self.lease = replace(obj, metadata=replace(obj.metadata, resource_version=str(self.revision)))
        return self.lease


class Clock:
    """A clock that advances only by sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sleeping only moves the clock."""
    clock, sleep = Clock(), asyncio.sleep

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await sleep(0)

    monkeypatch.setattr("master.network_controller.leader_election.asyncio.sleep", pass_time)
    return clock


async def test_second_candidate_waits_until_the_leaders_lease_expires(at_once: Clock) -> None:
    server = Leases()
    first, second = LeaderElection(server, "first", at_once), LeaderElection(server, "second", at_once)
    await first.acquire()
    began = at_once.now
    await second.acquire()
    assert at_once.now - began >= LEASE_SECONDS
    assert second.is_leader
    assert not first.is_leader, "who is taken the lease from has stopped long before"
    assert server.lease is not None
    assert server.lease.spec.lease_transitions == 2


async def test_renewing_leader_keeps_leadership(at_once: Clock) -> None:
    server = Leases()
    first, second = LeaderElection(server, "first", at_once), LeaderElection(server, "second", at_once)
    await first.acquire()
    keeping, waiting = asyncio.create_task(first.renew()), asyncio.create_task(second.acquire())
    while at_once.now < 1000.0 + 20 * LEASE_SECONDS:
        await asyncio.sleep(0)
        assert first.is_leader
    assert not waiting.done()
    keeping.cancel()
    waiting.cancel()
    await asyncio.gather(keeping, waiting, return_exceptions=True)


async def test_leader_that_cannot_renew_stops_and_reports_it(at_once: Clock) -> None:
    server = Leases()
    first = LeaderElection(server, "first", at_once)
    await first.acquire()
    first.check()
    server.away = True
    with pytest.raises(NotReady, match="could not be renewed"):
        await first.renew()
    assert at_once.now <= 1000.0 + RENEW_DEADLINE_SECONDS + 2 * leader_election.RETRY_SECONDS
    with pytest.raises(NotReady):
        first.check()


async def test_released_lease_is_available_at_once(at_once: Clock) -> None:
    server = Leases()
    first, second = LeaderElection(server, "first", at_once), LeaderElection(server, "second", at_once)
    await first.acquire()
    await first.release()
    assert not first.is_leader
    began = at_once.now
    await second.acquire()
    assert at_once.now == began


async def test_suspended_leader_notices_lost_leadership_before_writing(at_once: Clock) -> None:
    server = Leases()
    first, second = LeaderElection(server, "first", at_once), LeaderElection(server, "second", at_once)
    await first.acquire()
    at_once.now += 60
    with pytest.raises(NotReady):
        first.check()
    await second.acquire()
    await first.release()
    assert second.is_leader
    assert server.lease is not None
    assert server.lease.spec.holder_identity == "second"


async def test_concurrent_acquisition_elects_one_leader(at_once: Clock) -> None:
    server = Leases()
    both = LeaderElection(server, "first", at_once), LeaderElection(server, "second", at_once)
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(candidate.acquire()) for candidate in both]
    done: Callable[[], int] = lambda: sum(task.done() for task in tasks)  # noqa: E731
    while not done():
        await asyncio.sleep(0)
    assert done() == 1
    assert [candidate.is_leader for candidate in both].count(True) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
