"""Static pods from a URL."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from node_agent.event_recorder import EventRecorder
from node_agent.sources.static_pods import (
    MAX_MANIFEST_BYTES,
    REJECTED_REASON,
    ManifestOrigin,
    ParsedManifest,
    SourcePods,
    parse_manifest,
    rejection_message,
)

log = logging.getLogger(__name__)

PERIOD_SECONDS, TIMEOUT_SECONDS = 20.0, 10.0


@dataclass(frozen=True, slots=True)
class _Response:
    """The last good response, with its validators for conditional requests."""

    text: str
    manifest: ParsedManifest
    validators: Mapping[str, str]


class UrlSource:
    """The pods of a manifest at a URL: a Pod, a PodList or several documents. An empty response means no pods.

    After a failure the pods of the last good response stay. `synced` is True after the first good response. Redirects
    are not followed, because they would send the headers, which may hold secrets, to another server.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        node: str,
        on_change: Callable[[], None],
        events: EventRecorder,
    ) -> None:
        self.synced = False
        self._url = url
        self._headers = headers
        self._origin = ManifestOrigin(node, "http", url)
        self._on_change = on_change
        self._events = events
        self._last_response = _Response("", ParsedManifest(), {})
        self._error = ""

    @property
    def source_pods(self) -> tuple[SourcePods, ...]:
        """The pods of the last good response."""
        return (SourcePods(self._url, self._last_response.manifest.pods),)

    async def run(self) -> None:
        """Read the URL every PERIOD_SECONDS until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context())
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as http:
            while True:
                await self.read(http)
                await asyncio.sleep(PERIOD_SECONDS)

    async def read(self, http: aiohttp.ClientSession) -> None:
        """Read the URL once. An error is logged once, until another one occurs."""
        try:
            error_message = await self._get(http)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            error_message = str(error) or "no answer in time"
        if error_message and error_message != self._error:
            log.warning("manifest URL cannot be read", extra={"url": self._url, "error": error_message})
            self._events.node_event(REJECTED_REASON, f"{self._url} has no pods for us: {error_message}")
        self._error = error_message

    async def _get(self, http: aiohttp.ClientSession) -> str:
        """Return the error of the response. Return an empty string if it is good."""
        async with http.get(self._url, headers=self._last_response.validators, allow_redirects=False) as response:
            if response.status == 304 and self._last_response.validators:
                return ""
            if response.status != 200:
                return f"it answers {response.status} {response.reason or ''}; 200 is accepted".strip()
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_MANIFEST_BYTES:
                    return f"its answer is larger than {MAX_MANIFEST_BYTES >> 20} MB"
            validators = _validators(response.headers)
        return await self._apply(content.decode(), validators)

    async def _apply(self, text: str, validators: Mapping[str, str]) -> str:
        if self.synced and text == self._last_response.text:
            return ""
        manifest = await asyncio.to_thread(
            parse_manifest, text, self._origin, self._last_response.manifest.pods, datetime.now(UTC)
        )
        for rejected in manifest.rejected if text != self._last_response.text else ():
            log.warning(f"{self._url} {rejected}")
            self._events.node_event(REJECTED_REASON, rejection_message(self._url, rejected))
        if manifest.rejected and not manifest.pods and not self.synced:
            self._last_response = _Response(text, ParsedManifest(), {})
            return "it has no good document yet"
        self._last_response = _Response(text, manifest, validators)
        self.synced = True
        self._on_change()
        return ""


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    pairs = (("If-None-Match", headers.get("ETag")), ("If-Modified-Since", headers.get("Last-Modified")))
    return {name: value for name, value in pairs if value}
