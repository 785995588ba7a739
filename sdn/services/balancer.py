"""Brings switch, firewall and proxy to the ports that the catalogue has; nobody else programs services."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from reconcile.errors import DriverError
from sdn import metrics
from sdn.services.followed import Followed
from sdn.services.served_port import PortChange, PortKey, ServedPort
from sdn.services.serving import Vantage
from sdn.view import Ground

log = logging.getLogger(__name__)


class Outlet(Protocol):
    """One place where ports are programmed. Everything raises DriverError; what goes is closed before what comes is
    opened.
    """

    name: str

    async def is_intact(self) -> bool:
        """Whether nobody else has touched what it holds, as far as that is quickly seen."""

    async def replace(self, vantage: Vantage, ports: Mapping[PortKey, ServedPort]) -> bool:
        """Hold exactly these; whether it held anything else."""

    async def edit(self, vantage: Vantage, change: PortChange) -> None:
        """From what it held to what it shall hold."""


class Balancer:
    """`ground` returns what the API says of the network, None while there is none yet. `stages` are outlets that are
    programmed at the same time, one stage after the other; one that failed, or is distrusted, gets everything anew,
    otherwise changes alone. `unready` says why services are not programmed, if they are not.
    """

    def __init__(
        self,
        followed: Followed,
        ground: Callable[[], Ground | None],
        stages: Sequence[Sequence[Outlet]],
        resync_seconds: float,
        note_drift: Callable[[str], None],
    ) -> None:
        self.unready = "starting"
        self._followed = followed
        self._ground = ground
        self._stages = stages
        self._resync_seconds = resync_seconds
        self._note_drift = note_drift
        self._seen: tuple[Ground, Vantage] | None = None
        self._distrusted = {outlet.name for stage in stages for outlet in stage}
        self._fresh = set(self._distrusted)
        self._verified_at = time.monotonic()

    @property
    def vantage(self) -> Vantage | None:
        """From where services were seen last."""
        return self._seen[1] if self._seen is not None else None

    def distrust(self, name: str) -> None:
        """Give the outlet of that name everything anew in the next pass."""
        self._distrusted.add(name)

    async def one_pass(self) -> None:
        """Raises DriverError; the next pass goes on where this one failed."""
        ground = self._ground()
        if ground is None or not self._followed.synced:
            self.unready = "waiting for the network" if ground is None else "waiting for the master's first answer"
            return
        vantage, is_other = self._look(ground)
        change = self._followed.settle(vantage)
        due = self._followed.take_due()
        is_time = time.monotonic() >= self._verified_at + self._resync_seconds
        if is_time:
            self._verified_at = time.monotonic()
        failures: list[DriverError] = []
        for stage in self._stages:
            tried = (self._try(outlet, vantage, change, is_other, is_time) for outlet in stage)
            failures += [error for error in await asyncio.gather(*tried) if error is not None]
        self._count(change, due)
        self.unready = str(failures[0]) if failures else ""
        if failures:
            raise failures[0]

    async def _try(
        self, outlet: Outlet, vantage: Vantage, change: PortChange, is_other: bool, is_time: bool
    ) -> DriverError | None:
        try:
            if is_time and outlet.name not in self._distrusted and not await outlet.is_intact():
                self._distrusted.add(outlet.name)
            await self._program(outlet, vantage, change, is_other)
        except DriverError as error:
            self._distrusted.add(outlet.name)
            self._fresh.add(outlet.name)
            return error
        return None

    def _look(self, ground: Ground) -> tuple[Vantage, bool]:
        """From where services are seen now, and whether that is other than before."""
        if self._seen is not None and self._seen[0] is ground:
            return self._seen[1], False
        vantage = Vantage.of(ground)
        is_other = self._seen is None or self._seen[1] != vantage
        self._seen = ground, vantage
        return vantage, is_other

    async def _program(self, outlet: Outlet, vantage: Vantage, change: PortChange, is_other: bool) -> None:
        if outlet.name in self._distrusted:
            self._distrusted.discard(outlet.name)  # before: who touches it meanwhile brings it here again
            was_other = await outlet.replace(vantage, self._followed.catalogue.ports)
            if was_other and outlet.name not in self._fresh and not change and not is_other:
                self._note_drift(outlet.name)
            self._fresh.discard(outlet.name)
        elif change or is_other:
            await outlet.edit(vantage, change)

    def _count(self, change: PortChange, due: list[datetime]) -> None:
        now = datetime.now(UTC)
        for moment in due:
            metrics.PROGRAMMING_SECONDS.observe((now - moment).total_seconds())
        if change:
            metrics.SERVICES.set(len(self._followed.catalogue.served))
            metrics.ENDPOINTS.inc(_endpoints(change.come) - _endpoints(change.gone))
            log.info("services changed", extra={"added": len(change.come), "removed": len(change.gone)})


def _endpoints(ports: Iterable[ServedPort]) -> int:
    return sum(len(port.everywhere) for port in ports)
