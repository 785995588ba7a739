"""Waits before checks of passwords: those who fail wait, and hold no place of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from master.auth.identity_providers.provider import IdentityProvider, ProviderIdentity
from master.auth.oauth_tokens import GroupIndex
from master.oauth.logins import Busy, Logins
from master.oauth.throttle import FREE_ADDRESS_FAILURES, MAX_PENDING_LOGINS, MAX_PENDING_LOGINS_OF_CLIENT
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.unit.master.controller_context import controller_context


@dataclass
class OnePassword:
    """A provider with the user alice, whose password is `right`."""

    checks: list[str] = field(default_factory=list)

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity, None for a wrong password."""
        self.checks.append(username)
        return ProviderIdentity("local", username) if (username, password) == ("alice", "right") else None


@pytest.fixture
async def logins(tmp_path: Path) -> AsyncIterator[Logins]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield Logins(storage, controller_context(storage).creation, GroupIndex(storage))
    await storage.close()


def ignore(_key: str, _value: str) -> None:
    """Drop an audit annotation."""


async def test_waiting_failures_leave_room_for_a_right_password(logins: Logins) -> None:
    provider = OnePassword()
    providers = (IdentityProvider("local", True, True, "claim", provider),)

    async def attempt(user: str, password: str, address: str) -> bool:
        return await logins.check_password(providers, user, password, address, ignore) is not None

    clients = [f"192.0.2.{number}" for number in range(MAX_PENDING_LOGINS // MAX_PENDING_LOGINS_OF_CLIENT)]
    for address in clients:
        for number in range(FREE_ADDRESS_FAILURES):
            assert not await attempt(f"{address}-{number}", "wrong", address)
    waiting = [
        asyncio.create_task(attempt(f"{address}-next", "wrong", address))
        for address in clients
        for _ in range(MAX_PENDING_LOGINS_OF_CLIENT)
    ]
    await asyncio.sleep(0)
    assert not any(f"{clients[0]}-next" in name for name in provider.checks)
    with pytest.raises(Busy):
        await attempt("one more", "wrong", clients[0])
    assert await attempt("alice", "right", "198.51.100.1")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
