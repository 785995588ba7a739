"""Pending requests to attach and detach pods, as futures that a pass completes."""

from __future__ import annotations

import asyncio

from reconcile.errors import DriverError


def discard_result(future: asyncio.Future[None]) -> None:
    """Who asked may have gone away."""
    if not future.cancelled():
        future.exception()


def complete(future: asyncio.Future[None], error: DriverError | None = None) -> None:
    """Answer, unless somebody has: that it is done, or what spoke against it."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
