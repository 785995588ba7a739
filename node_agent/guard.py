"""What goes wrong with one pod in a way that nobody foresaw does not end what looks after all the others."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable

from reconcile.errors import DriverError, NotReady

log = logging.getLogger(__name__)

Pass = Callable[[], Awaitable[None]]


def guarded(what: str, work: Pass) -> Pass:
    """The same work; an exception that is none of a driver's is logged in full, and the work tried again later."""

    @functools.wraps(work)
    async def careful() -> None:
        try:
            await work()
        except DriverError:
            raise
        except Exception as error:
            log.exception("a bug", extra={"at": what})
            raise NotReady(f"{what}: {type(error).__name__}: {error}; the log says more") from error

    return careful
