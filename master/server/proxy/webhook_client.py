"""Makes the calls of admission webhooks. Driver."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

from master.admission.webhooks import review
from master.admission.webhooks.calls import CallFailed, WebhookCall, WebhookResult, WebhookTarget
from master.server.proxy.extension_client import ExtensionClient, TLSConfig
from master.server.proxy.kubelet_client import Unreachable

MAX_EXTRA_BYTES = 1 << 20
"""Bytes of a response beyond three times those of the request."""

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, */*"}

log = logging.getLogger(__name__)


class WebhookClient:
    """Makes calls of webhooks. Each call has a result; a failed one says why."""

    def __init__(self, extensions: ExtensionClient) -> None:
        self._extensions = extensions

    async def call(self, calls: Sequence[WebhookCall]) -> Sequence[WebhookResult]:
        """Make the calls at the same time, and return their results in the same order."""
        return await asyncio.gather(*map(self._call, calls))

    async def _call(self, call: WebhookCall) -> WebhookResult:
        uid = str(uuid.uuid4())
        body = review.encode_review(call.version, uid, call.request)
        try:
            response = await post(self._extensions, call.target, body, call.seconds)
        except Unreachable as error:
            log.warning("webhook not called", extra={"url": call.target.url, "error": str(error)})
            return CallFailed(f"failed to call webhook: {error}")
        result = review.decode_review(call.version, uid, response)
        if isinstance(result, CallFailed):
            log.warning("webhook response not usable", extra={"url": call.target.url, "error": result.error})
        return result


async def post(extensions: ExtensionClient, target: WebhookTarget, body: bytes, seconds: int) -> bytes:
    """Send a review to a webhook, and return the body of its response. Raises Unreachable.

    The response may have three times the bytes of the request, and MAX_EXTRA_BYTES more.
    """
    url = f"{target.url}?timeout={seconds}s"
    try:
        async with asyncio.timeout(seconds):
            response = await extensions.request(
                target.service,
                url,
                "POST",
                HEADERS,
                body,
                TLSConfig(target.ca_bundle),
                max_bytes=3 * len(body) + MAX_EXTRA_BYTES,
            )
    except TimeoutError:
        raise Unreachable(f'Post "{url}": context deadline exceeded') from None
    except Unreachable as error:
        raise Unreachable(f'Post "{url}": {error}') from error
    if not 200 <= response.status <= 206:
        raise Unreachable(_refusal(response.status, response.body))
    return response.body


def _refusal(code: int, body: bytes) -> str:
    """Return the words of kube-apiserver for a status that is not successful."""
    text = body[:200].decode(errors="replace").strip()
    if code == 404:
        return "the server could not find the requested resource"
    if code >= 500:
        return f'an error on the server ("{text}") has prevented the request from succeeding'
    return f"the server responded with the status code {code} but did not return more information"
