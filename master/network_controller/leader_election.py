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
"""Who has not renewed the lease for so long has lost it."""

HELD_SECONDS = 10.0
"""Who could not renew it for so long acts no more: well before others may take it."""

RETRY_SECONDS = 2.0

Steady = Callable[[], float]


def boot_time() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElection:
    """First `await win()`, then `await keep()` beside the work. `steady` is a clock that never jumps (seconds).

    Clocks of different machines are never compared: a lease is free when nobody has been seen to change it for as
    long as it says.
    """

    def __init__(self, client: Client, identity: str, steady: Steady = boot_time) -> None:
        self._client = client
        self._identity = identity
        self._steady = steady
        self._lease: Lease | None = None
        self._seen_at = 0.0
        self._renewed_at = float("-inf")

    @property
    def held(self) -> bool:
        """Whether we are in charge now."""
        return self._steady() < self._renewed_at + HELD_SECONDS

    @property
    def holder(self) -> str:
        """Who was last seen to be in charge."""
        return self._lease.spec.holder_identity if self._lease is not None else ""

    def check(self) -> None:
        """Before each write. Raises NotReady when somebody else may be in charge."""
        if not self.held:
            raise NotReady(f"the lease {NAMESPACE}/{NAME} could not be renewed in time: somebody else may be in charge")

    async def win(self) -> None:
        """Wait until nobody else is in charge, then be it."""
        while not await self._try():  # noqa: ASYNC110 what is waited for happens elsewhere
            await asyncio.sleep(RETRY_SECONDS)
        log.info("in charge", extra={"lease": f"{NAMESPACE}/{NAME}", "identity": self._identity})

    async def keep(self) -> None:
        """Renew the lease. Raises NotReady when it is lost."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            await self._try()
            self.check()

    async def give_back(self) -> None:
        """Let others be in charge at once."""
        lease = self._lease
        if lease is None or not self.held or lease.spec.holder_identity != self._identity:
            return
        self._renewed_at = float("-inf")
        spec = replace(lease.spec, holder_identity="", lease_duration_seconds=1)
        with contextlib.suppress(ClientError):
            await self._client.update(replace(lease, spec=spec))

    async def _try(self) -> bool:
        """Take or renew the lease, if it may be; whether it is ours now."""
        try:
            begun = self._steady()
            found = await self._look()
            if found is None:
                spec = self._spec(LeaseSpec())
                self._lease = await self._client.create(Lease(metadata=_META, spec=spec))
            elif self._is_free(found):
                self._lease = await self._client.update(replace(found, spec=self._spec(found.spec)))
            else:
                return False
        except (AlreadyExists, Conflict):
            return False
        except ClientError as error:
            log.warning("the lease cannot be renewed", extra={"error": str(error)})
            return False
        self._seen_at, self._renewed_at = begun, begun
        return True

    async def _look(self) -> Lease | None:
        try:
            found = await self._client.get(Lease, NAME, NAMESPACE)
        except NotFound:
            return None
        if self._lease is None or found.metadata.resource_version != self._lease.metadata.resource_version:
            self._lease, self._seen_at = found, self._steady()
        return found

    def _is_free(self, lease: Lease) -> bool:
        holder, seconds = lease.spec.holder_identity, lease.spec.lease_duration_seconds or LEASE_SECONDS
        return holder in {"", self._identity} or self._steady() >= self._seen_at + seconds

    def _spec(self, before: LeaseSpec) -> LeaseSpec:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = before.holder_identity == self._identity
        return replace(
            before,
            holder_identity=self._identity,
            lease_duration_seconds=LEASE_SECONDS,
            acquire_time=before.acquire_time if is_ours else now,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + (not is_ours),
        )


_META = ObjectMeta(name=NAME, namespace=NAMESPACE)
