"""An aggregated API server: it serves the group toys.example.org, and trusts the master as Kubernetes' library does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from api.core.certificates import SERVER_USAGES
from api.pki import keys
from api.pki.pem import Subject
from master.auth import pki
from streams.upgrade import UpgradeResponse

GROUP, VERSION = "toys.example.org", "v1"
ROOT = f"/apis/{GROUP}/{VERSION}"
VERBS = ["create", "delete", "deletecollection", "get", "list", "watch"]

RESOURCES = [
    {"name": "toys", "singularName": "toy", "namespaced": True, "kind": "Toy", "verbs": VERBS, "shortNames": ["ty"]},
    {"name": "toys/play", "singularName": "", "namespaced": True, "kind": "Toy", "verbs": ["create", "get"]},
    {"name": "boxes", "singularName": "box", "namespaced": False, "kind": "Box", "verbs": ["get", "list"]},
]
OPENAPI = {"openapi": "3.0.0", "info": {"title": "toys", "version": "1"}, "paths": {}, "components": {"schemas": {}}}


@dataclass(frozen=True)
class SeenRequest:
    """A request that came with an accepted certificate."""

    method: str
    path: str
    query: str
    headers: CIMultiDict[str]
    body: bytes

    @property
    def user(self) -> tuple[str, list[str]]:
        """Return the name and the groups that the headers name."""
        return self.headers.get("X-Remote-User", ""), self.headers.getall("X-Remote-Group", [])


@dataclass
class ExtensionServer:
    """A running server. `behaviour` says how it misbehaves; empty for not at all."""

    port: int
    ca_bundle: str
    group: str = GROUP
    version: str = VERSION
    allowed_names: frozenset[str] = frozenset()
    behaviour: str = ""
    requests: list[SeenRequest] = field(default_factory=list)
    refused: int = 0
    resources: list[Any] = field(default_factory=lambda: list(RESOURCES))
    answers: dict[str, Any] = field(default_factory=dict)
    """What is responded to a GET of a path."""
    toys: dict[tuple[str, str], Any] = field(default_factory=dict)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    watchers: int = 0

    def asked(self, path: str) -> list[SeenRequest]:
        """Return the requests for a path."""
        return [request for request in self.requests if request.path == path]

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Respond, if the client shows a certificate with an allowed name."""
        certificate = http.get_extra_info("peercert") or {}
        names = {value for names in certificate.get("subject", ()) for key, value in names if key == "commonName"}
        if not names & self.allowed_names:
            self.refused += 1
            return web.json_response({"kind": "Status", "status": "Failure", "code": 401}, status=401)
        upgrade = http.headers.get("Upgrade", "")
        body = b"" if upgrade else await http.read()
        self.requests.append(SeenRequest(http.method, http.path, http.query_string, CIMultiDict(http.headers), body))
        if self.behaviour and self.behaviour != "no-openapi":
            misbehaved = await self._misbehave(http)
            if misbehaved is not None:
                return misbehaved
        if upgrade:
            return await self._play(http, upgrade)
        return await self._serve(http, body)

    async def _misbehave(self, http: web.Request) -> web.StreamResponse | None:  # noqa: PLR0911
        match self.behaviour:
            case "fail":
                return web.Response(status=500, text="out of order")
            case "hang":
                await self.released.wait()
            case "redirect":
                return web.Response(status=302, headers={"Location": "https://169.254.169.254/"})
            case "switch":
                return await self._play(http, "websocket")
            case "close":
                assert http.transport is not None
                http.transport.close()
            case "not-json":
                return web.Response(text="<html>", content_type="text/html")
            case "huge":
                return web.Response(body=b" " * (3 << 20), content_type="application/json")
            case "drip":
                response = web.StreamResponse()
                await response.prepare(http)
                with contextlib.suppress(ConnectionError):
                    while not self.released.is_set():
                        await response.write(b" ")
                        await asyncio.sleep(0.2)
                return response
        return None

    async def _play(self, http: web.Request, upgrade: str) -> web.StreamResponse:
        """Send `hello`, then echo the input."""
        answer = UpgradeResponse([("Upgrade", upgrade)])
        stream = await answer.upgrade(http)
        with contextlib.suppress(ConnectionError):
            await stream.write(b"hello")
            while data := await stream.read():
                await stream.write(data)
        await stream.end()
        return answer

    async def _serve(self, http: web.Request, body: bytes) -> web.StreamResponse:  # noqa: PLR0911
        root = f"/apis/{self.group}/{self.version}"
        if http.path in self.answers:
            return web.json_response(self.answers[http.path])
        match http.path.strip("/").split("/"):
            case ["apis", group, version] if (group, version) == (self.group, self.version):
                listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}"}
                return web.json_response({**listed, "resources": self.resources})
            case ["openapi", "v3"] if self.behaviour != "no-openapi":
                url = f"/openapi/v3{root}?hash=1"
                return web.json_response({"paths": {root[1:]: {"serverRelativeURL": url}, "api/v1": {}}})
            case ["openapi", "v3", "apis", *_]:
                return web.json_response(OPENAPI)
            case ["apis", self.group, _, "namespaces", namespace, "toys"]:
                return await self._collection(http, namespace, body)
            case ["apis", self.group, _, "namespaces", namespace, "toys", name]:
                return self._object(http, namespace, name)
            case ["apis", self.group, _, "echo", *_]:
                return web.json_response({"path": http.raw_path, "body": len(body)})
        return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)

    async def _collection(self, http: web.Request, namespace: str, body: bytes) -> web.StreamResponse:
        if http.method == "POST":
            toy = json.loads(body)
            toy["metadata"] = {**toy["metadata"], "namespace": namespace}
            self.toys[namespace, toy["metadata"]["name"]] = toy
            return web.json_response(toy, status=201)
        found = [toy for (where, _), toy in sorted(self.toys.items()) if where == namespace]
        if http.method == "DELETE":
            for toy in found:
                if not toy["metadata"].get("finalizers"):
                    del self.toys[namespace, toy["metadata"]["name"]]
            return web.json_response({"kind": "Status", "status": "Success"})
        if http.query.get("watch"):
            return await self._watch(http)
        return web.json_response({"kind": "ToyList", "apiVersion": f"{self.group}/v1", "metadata": {}, "items": found})

    async def _watch(self, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        self.watchers += 1
        try:
            for number in range(1000):
                await response.write(json.dumps({"type": "ADDED", "object": {"number": number}}).encode() + b"\n")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.released.wait()
        except ConnectionError:
            pass
        finally:
            self.watchers -= 1
        return response

    def _object(self, http: web.Request, namespace: str, name: str) -> web.StreamResponse:
        toy = self.toys.get((namespace, name))
        if toy is None:
            return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)
        if http.method == "DELETE":
            del self.toys[namespace, name]
        return web.json_response(toy)


@asynccontextmanager
async def running_extension(
    root: Path, configuration: dict[str, str], *names: str, address: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[ExtensionServer]:
    """Run a server with a certificate for these names, of an authority of its own.

    `configuration` is the data of the ConfigMap extension-apiserver-authentication, from which it learns whom to trust.
    """
    now = datetime.datetime.now(datetime.UTC)
    ca, key = pki.authority(root / "extension", now), keys.generate_key()
    signed = pki.sign_request(
        ca, keys.create_request(key, Subject("extension", dns_names=names)), SERVER_USAGES, 3600, now
    )
    (root / "extension.pem").write_bytes(key + signed)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / "extension.pem")
    context.load_verify_locations(cadata=configuration["requestheader-client-ca-file"])
    context.verify_mode = ssl.CERT_OPTIONAL
    server = ExtensionServer(
        0,
        base64.b64encode(ca.pem).decode(),
        allowed_names=frozenset(json.loads(configuration["requestheader-allowed-names"])),
    )
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
