"""Leader election: the holder of a Lease acts, as in Kubernetes controllers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from api.client.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from api.core.node import Lease, LeaseSpec
from api.meta.types import ObjectMeta
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

NAMESPACE, NAME = "kube-system", "podlane-network"
LEASE_SECONDS = 15
"""Seconds without a renewal after which another process may take the lease."""

RENEW_DEADLINE_SECONDS = 10.0
"""Seconds without a renewal after which the leader stops writing, well before another process may take the lease."""

RETRY_SECONDS = 2.0

MonotonicClock = Callable[[], float]


def boot_time() -> float:
    """Return seconds of a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElection:
    """Leader election: first `await acquire()`, then `await renew()` alongside the work. `monotonic` is a clock in
    seconds.

    Clocks of different machines are never compared: a lease is free when this process has seen no change of it for the
    duration that the lease states.
    """

    def __init__(self, client: Client, identity: str, monotonic: MonotonicClock = boot_time) -> None:
        self._client = client
        self._identity = identity
        self._monotonic = monotonic
        self._lease: Lease | None = None
        self._observed_at = 0.0
        self._renewed_at = float("-inf")

    @property
    def is_leader(self) -> bool:
        """Return whether this process is the leader now."""
        return self._monotonic() < self._renewed_at + RENEW_DEADLINE_SECONDS

    @property
    def holder(self) -> str:
        """Return the identity of the last holder that was read."""
        return self._lease.spec.holder_identity if self._lease is not None else ""

    def check(self) -> None:
        """Raise NotReady when another process may be the leader. Called before each write."""
        if not self.is_leader:
            raise NotReady(
                f"the lease {NAMESPACE}/{NAME} could not be renewed in time: another process may be the leader"
            )

    async def acquire(self) -> None:
        """Wait until no other process is the leader, then become it."""
        while not await self._try():  # noqa: ASYNC110 what is waited for happens elsewhere
            await asyncio.sleep(RETRY_SECONDS)
        log.info("lease acquired", extra={"lease": f"{NAMESPACE}/{NAME}", "identity": self._identity})

    async def renew(self) -> None:
        """Renew the lease until it is lost. Raises NotReady then."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            await self._try()
            self.check()

    async def release(self) -> None:
        """Release the lease, so that another process can become the leader at once."""
        lease = self._lease
        if lease is None or not self.is_leader or lease.spec.holder_identity != self._identity:
            return
        self._renewed_at = float("-inf")
        spec = replace(lease.spec, holder_identity="", lease_duration_seconds=1)
        with contextlib.suppress(ClientError):
            await self._client.update(replace(lease, spec=spec))

    async def _try(self) -> bool:
        """Acquire or renew the lease if possible; return whether this process holds it."""
        try:
            start = self._monotonic()
            lease = await self._read()
            if lease is None:
                spec = self._spec(LeaseSpec())
                self._lease = await self._client.create(Lease(metadata=_META, spec=spec))
            elif self._is_free(lease):
                self._lease = await self._client.update(replace(lease, spec=self._spec(lease.spec)))
            else:
                return False
        except (AlreadyExists, Conflict):
            return False
        except ClientError as error:
            log.warning("lease not renewed", extra={"error": str(error)})
            return False
        self._observed_at, self._renewed_at = start, start
        return True

    async def _read(self) -> Lease | None:
        try:
            lease = await self._client.get(Lease, NAME, NAMESPACE)
        except NotFound:
            return None
        if self._lease is None or lease.metadata.resource_version != self._lease.metadata.resource_version:
            self._lease, self._observed_at = lease, self._monotonic()
        return lease

    def _is_free(self, lease: Lease) -> bool:
        holder, seconds = lease.spec.holder_identity, lease.spec.lease_duration_seconds or LEASE_SECONDS
        return holder in {"", self._identity} or self._monotonic() >= self._observed_at + seconds

    def _spec(self, old: LeaseSpec) -> LeaseSpec:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        was_holder = old.holder_identity == self._identity
        return replace(
            old,
            holder_identity=self._identity,
            lease_duration_seconds=LEASE_SECONDS,
            acquire_time=old.acquire_time if was_holder else now,
            renew_time=now,
            lease_transitions=(old.lease_transitions or 0) + (not was_holder),
        )


_META = ObjectMeta(name=NAME, namespace=NAMESPACE)
