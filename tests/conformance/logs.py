"""Serves the logs of a node's containers where a kubelet does, from what Docker has of them: `logs SOCKET ADDRESS PEM`.

Kubernetes' specs read most of what they check from there. It stands in for a server that the node agent does not have.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import Any

import docker
from aiohttp import web

from node_agent import observed as label

PORT = 10250
END_SECONDS = 0.05
"""An API server loses what comes together with the end, when it hands it on over a WebSocket."""


class Logs:
    """Of the containers of pods; of several runs of one the newest, or with `previous` the one before it."""

    def __init__(self, socket: str) -> None:
        self._client: Any = docker.APIClient(base_url=f"unix://{socket}", version="1.41")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """GET /containerLogs/NAMESPACE/POD/CONTAINER"""
        text = await asyncio.to_thread(self._read, dict(request.match_info), dict(request.query))
        if text is None:
            raise web.HTTPNotFound
        stream = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await stream.prepare(request)
        await stream.write(text)
        await asyncio.sleep(END_SECONDS)
        await stream.write_eof()
        return stream

    def _read(self, place: dict[str, str], query: dict[str, str]) -> bytes | None:
        wanted = {
            label.POD_NAMESPACE: place["namespace"],
            label.POD_NAME: place["pod"],
            label.CONTAINER_NAME: place["container"],
        }
        filters = {"label": [f"{key}={value}" for key, value in wanted.items()]}
        rows = sorted(self._client.containers(all=True, filters=filters), key=lambda row: -row["Created"])
        chosen = rows[1:2] if query.get("previous") == "true" else rows[:1]
        if not chosen:
            return None
        tail: str | int = int(query["tailLines"]) if "tailLines" in query else "all"
        text: bytes = self._client.logs(
            chosen[0]["Id"], stdout=True, stderr=True, tail=tail, timestamps=query.get("timestamps") == "true"
        )
        return text[: int(query.get("limitBytes", len(text)))]


async def serve(socket: str, address: str, pem: str) -> None:
    """Until cancelled."""
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", Logs(socket).answer)
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(pem)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, PORT, ssl_context=secure).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:4]))
