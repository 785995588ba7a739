"""Static pods from a URL."""

from __future__ import annotations

import asyncio
import logging
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

PERIOD_SECONDS, ANSWER_SECONDS = 20.0, 10.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The last good answer, with what the server gave us to ask whether there is a newer one."""

    text: str
    reading: ParsedManifest
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
        self._last = _Answer("", ParsedManifest(), {})
        self._trouble = ""

    @property
    def source_pods(self) -> tuple[SourcePods, ...]:
        """The pods of the last good response."""
        return (SourcePods(self._url, self._last.reading.pods),)

    async def run(self) -> None:
        """Ask, and ask again, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as http:
            while True:
                await self.ask(http)
                await asyncio.sleep(PERIOD_SECONDS)

    async def ask(self, http: aiohttp.ClientSession) -> None:
        """Take in what the URL says now. Trouble is logged once, until it is another."""
        try:
            trouble = await self._ask(http)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            trouble = str(error) or "no answer in time"
        if trouble and trouble != self._trouble:
            log.warning("the manifest URL has no pods for us", extra={"url": self._url, "error": trouble})
            self._events.node_event(REJECTED_REASON, f"{self._url} has no pods for us: {trouble}")
        self._trouble = trouble

    async def _ask(self, http: aiohttp.ClientSession) -> str:
        """Empty when there was a good answer, else what was wrong with it."""
        async with http.get(self._url, headers=self._last.validators, allow_redirects=False) as answer:
            if answer.status == 304 and self._last.validators:
                return ""
            if answer.status != 200:
                return f"it answers {answer.status} {answer.reason or ''}; 200 is accepted".strip()
            content = bytearray()
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > MAX_MANIFEST_BYTES:
                    return f"its answer is larger than {MAX_MANIFEST_BYTES >> 20} MB"
            validators = _validators(answer.headers)
        return await self._take(content.decode(), validators)

    async def _take(self, text: str, validators: Mapping[str, str]) -> str:
        if self.synced and text == self._last.text:
            return ""
        reading = await asyncio.to_thread(
            parse_manifest, text, self._origin, self._last.reading.pods, datetime.now(UTC)
        )
        for refusal in reading.refusals if text != self._last.text else ():
            log.warning(f"{self._url} {refusal}")
            self._events.node_event(REJECTED_REASON, rejection_message(self._url, refusal))
        if reading.refusals and not reading.pods and not self.synced:
            self._last = _Answer(text, ParsedManifest(), {})
            return "it has no good document yet"
        self._last = _Answer(text, reading, validators)
        self.synced = True
        self._on_change()
        return ""


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    pairs = (("If-None-Match", headers.get("ETag")), ("If-Modified-Since", headers.get("Last-Modified")))
    return {name: value for name, value in pairs if value}
