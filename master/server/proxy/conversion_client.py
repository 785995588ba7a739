"""Lets the webhooks of definitions convert custom resources. Driver."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

from master import errors
from master.apiextensions import conversion
from master.apiextensions.conversion import ConversionCall, ConversionFailed, Conversions
from master.server.proxy.extension_client import ExtensionClient
from master.server.proxy.kubelet_client import Unreachable
from master.server.proxy.webhook_client import post

WEBHOOK_SECONDS = 30
"""How long a conversion may take, as in Kubernetes."""

log = logging.getLogger(__name__)


class ConversionClient:
    """Makes conversion calls. Objects that a webhook converts to the same version are sent together.

    A call that is being made for another request is not made again. Results are put into `conversions`.
    """

    def __init__(self, extensions: ExtensionClient, conversions: Conversions) -> None:
        self._extensions = extensions
        self._conversions = conversions
        self._pending: dict[ConversionCall, asyncio.Future[bytes]] = {}

    async def call(self, calls: Sequence[ConversionCall]) -> Sequence[bytes]:
        """Make the calls and return their results in the same order. Raises StatusError if a webhook fails."""
        reviews: dict[tuple[object, ...], list[ConversionCall]] = {}
        for call in dict.fromkeys(calls):
            if call not in self._pending:
                reviews.setdefault((call.webhook, call.kind, call.api_version), []).append(call)
        for review in reviews.values():
            self._begin(review)
        # A request that ends must not end the call for the others.
        results = await asyncio.gather(*(asyncio.shield(self._pending[call]) for call in calls))
        for call, result in zip(calls, results, strict=True):
            self._conversions.put(call, result)
        return results

    def _begin(self, calls: list[ConversionCall]) -> None:
        task = asyncio.create_task(self._review(calls))
        futures = [asyncio.get_running_loop().create_future() for _ in calls]
        self._pending.update(zip(calls, futures, strict=True))

        def end(done: asyncio.Task[list[bytes]]) -> None:
            failure = asyncio.CancelledError() if done.cancelled() else done.exception()
            for number, (call, future) in enumerate(zip(calls, futures, strict=True)):
                del self._pending[call]
                if future.cancelled():
                    continue
                if failure is None:
                    future.set_result(done.result()[number])
                else:
                    future.set_exception(failure)
                    future.exception()  # Each waiter gets it; nobody may be waiting any more.

        task.add_done_callback(end)

    async def _review(self, calls: list[ConversionCall]) -> list[bytes]:
        """Send a ConversionReview. Raises StatusError."""
        uid, target = str(uuid.uuid4()), calls[0].webhook.target
        body = conversion.encode_review(uid, calls)
        try:
            answer = await post(self._extensions, target, body, WEBHOOK_SECONDS)
            return await asyncio.to_thread(conversion.decode_review, uid, calls, answer)
        except (Unreachable, ConversionFailed) as error:
            named = f"{calls[0].api_version}, Kind={calls[0].kind}"
            verb = "" if str(error).startswith("returned ") else "failed: "
            log.warning("conversion failed", extra={"url": target.url, "error": str(error)})
            message = f"conversion webhook for {named} {verb}{error}"
            raise errors.status_error(500, "InternalError", message) from error
