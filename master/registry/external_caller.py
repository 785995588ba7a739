"""Makes the external calls that a write needs to be decided. Driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from master.admission.external_calls import ExternalCall, ExternalResults

Call = Callable[[tuple[Any, ...]], Awaitable[Sequence[Any]]]
"""Makes calls of one type and returns their results in the same order. A failed call has a result, too."""


class ExternalCaller:
    """Makes external calls: those of each type by the driver of that type."""

    def __init__(self, drivers: Mapping[type[ExternalCall], Call] | None = None) -> None:
        self._drivers = dict(drivers or {})

    async def resolve(self, calls: Sequence[ExternalCall], results: ExternalResults) -> None:
        """Make the calls at once, and put their results."""
        by_type: dict[type[ExternalCall], list[ExternalCall]] = {}
        for call in calls:
            by_type.setdefault(type(call), []).append(call)
        answers = await asyncio.gather(*(self._drivers[of](tuple(asked)) for of, asked in by_type.items()))
        for asked, given in zip(by_type.values(), answers, strict=True):
            results.put(asked, given)
