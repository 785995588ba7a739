"""A webhook server with one path for each way to respond, honest or not."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
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

Review = Mapping[str, Any]


def accepted(review: Review, **response: Any) -> dict[str, Any]:
    """Return an AdmissionReview that accepts the request, with further fields of the response."""
    said = {"uid": review["request"]["uid"], "allowed": True, **response}
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": said}


def patched(review: Review, *operations: Any) -> dict[str, Any]:
    """Return an AdmissionReview that changes the object."""
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return accepted(review, patch=encoded, patchType="JSONPatch")


def denied(review: Review, **status: Any) -> dict[str, Any]:
    """Return an AdmissionReview that rejects the request."""
    return accepted(review, allowed=False, status=status)


def _append(letter: str) -> Callable[[Review], dict[str, Any]]:
    def respond(review: Review) -> dict[str, Any]:
        data = review["request"]["object"].get("data") or {}
        return patched(review, {"op": "add", "path": "/data", "value": {**data, "seen": data.get("seen", "") + letter}})

    return respond


def _sidecar(review: Review) -> dict[str, Any]:
    containers = review["request"]["object"]["spec"]["containers"]
    if any(container["name"] == "sidecar" for container in containers):
        return accepted(review)
    return patched(
        review, {"op": "add", "path": "/spec/containers/-", "value": {"name": "sidecar", "image": "sidecar:1"}}
    )


HONEST: Mapping[str, Callable[[Review], Any]] = {
    "accept": accepted,
    "append-a": _append("a"),
    "append-b": _append("b"),
    "sidecar": _sidecar,
    "annotate": lambda review: patched(
        review, {"op": "add", "path": "/metadata/annotations", "value": {"seen": "yes"}}
    ),
    "deny": lambda review: denied(review, message="not here", reason="Forbidden", code=403),
    "deny-without-words": lambda review: denied(review),
    "warn": lambda review: accepted(review, warnings=["careful\r\nX-Forged: yes"], auditAnnotations={"k": "v"}),
}
"""Path → what an honest webhook responds."""

LYING: Mapping[str, Callable[[Review], Any]] = {
    "other-uid": lambda review: accepted(review, uid="another"),
    "other-version": lambda review: {**accepted(review), "apiVersion": "admission.k8s.io/v9"},
    "no-response": lambda review: {"apiVersion": review["apiVersion"], "kind": "AdmissionReview"},
    "patch-without-type": lambda review: accepted(review, patch="W10="),
    "patch-not-base64": lambda review: accepted(review, patch="%%%", patchType="JSONPatch"),
    "patch-not-json": lambda review: accepted(review, patch="e30=", patchType="JSONPatch"),
    "inapplicable": lambda review: patched(review, {"op": "remove", "path": "/nowhere"}),
    "rename": lambda review: patched(review, {"op": "replace", "path": "/metadata/name", "value": "other"}),
    "move": lambda review: patched(review, {"op": "replace", "path": "/metadata/namespace", "value": "other"}),
    "bad-type": lambda review: patched(review, {"op": "add", "path": "/data", "value": [1]}),
    "html": lambda review: "<html></html>",
    "huge": lambda review: accepted(review, warnings=["w" * (2 << 20)]),
}
"""Path → what a webhook responds whose response is not usable."""


def converted(review: Review, **response: Any) -> dict[str, Any]:
    """Return the ConversionReview of an honest webhook. `spec.color` of v1 is `spec.paint.color` of v2."""
    version = review["request"]["desiredAPIVersion"]
    objects = [_as_version(version, obj) for obj in review["request"]["objects"]]
    said = {"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects, **response}
    return {"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": said}


def _as_version(version: str, obj: dict[str, Any]) -> dict[str, Any]:
    spec = dict(obj["spec"])
    if version.endswith("/v2") and "color" in spec:
        spec["paint"] = {"color": spec.pop("color")}
    if not version.endswith("/v2") and "paint" in spec:
        spec["color"] = spec.pop("paint")["color"]
    return {**obj, "apiVersion": version, "spec": spec}


def _each_converted(change: Callable[[dict[str, Any]], Any]) -> Callable[[Review], dict[str, Any]]:
    def respond(review: Review) -> dict[str, Any]:
        objects = converted(review)["response"]["convertedObjects"]
        return converted(review, convertedObjects=[change(obj) for obj in objects])

    return respond


def _with_metadata(**changes: Any) -> Callable[[Review], dict[str, Any]]:
    return _each_converted(lambda obj: {**obj, "metadata": {**obj["metadata"], **changes}})


CONVERTING: Mapping[str, Callable[[Review], Any]] = {
    "convert": converted,
    "convert-labels": _with_metadata(labels={"made": "yes"}, resourceVersion="1", finalizers=["example.com/f"]),
}
"""Path → what a webhook responds that converts objects."""

MISCONVERTING: Mapping[str, Callable[[Review], Any]] = {
    "convert-other-uid": lambda review: converted(review, uid="another"),
    "convert-fewer": lambda review: converted(review, convertedObjects=[]),
    "convert-unsuccessful": lambda review: converted(review, result={"status": "Failed", "message": "no idea how"}),
    "convert-rename": _with_metadata(name="other"),
    "convert-move": _with_metadata(namespace="other"),
    "convert-other-object": _with_metadata(uid="other"),
    "convert-other-kind": _each_converted(lambda obj: {**obj, "kind": "Other"}),
    "convert-nothing": lambda review: converted(review, convertedObjects=review["request"]["objects"]),
    "convert-to-text": _each_converted(lambda obj: "text"),
    "convert-no-metadata": _each_converted(lambda obj: {**obj, "metadata": None}),
    "convert-bad-labels": _with_metadata(labels={"a": 1}),
    "convert-wide": _each_converted(lambda obj: {**obj, **{f"f{number}": 1 for number in range(2_000)}}),
    "convert-deep": lambda review: _deep(review),
    "convert-huge": lambda review: converted(review, more="w" * (8 << 20)),
    "convert-html": lambda review: "<html></html>",
}
"""Path → what a webhook responds whose conversion is not usable."""


def _deep(review: Review) -> str:
    text = json.dumps(converted(review, convertedObjects=[{**review["request"]["objects"][0], "spec": "deep"}]))
    return text.replace('"deep"', "[" * 5_000 + "]" * 5_000)


@dataclass
class WebhookServer:
    """A running server. `reviews` are (path, review) in the order in which they came."""

    port: int
    ca_bundle: str
    reviews: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[CIMultiDict[str]] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the waits of the paths `hang`."""
    is_broken: bool = False
    """Whether every response is a 500."""
    transports: set[asyncio.Transport] = field(default_factory=set)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Respond as the path says."""
        if http.transport is not None:
            self.transports.add(http.transport)
        path, review = http.path.strip("/"), await http.json()
        self.reviews.append((path, review))
        self.headers.append(CIMultiDict(http.headers))
        is_delete = review["request"].get("operation") == "DELETE"
        if path == "redirect":
            return web.Response(status=302, headers={"Location": f"https://{http.host}/accept"})
        if path == "fail" or self.is_broken:
            return web.Response(status=500, text="out of order")
        if path == "hang":
            await self.released.wait()
        if path == "close":
            assert http.transport is not None
            http.transport.close()
        if path == "gzip":
            body = gzip.compress(json.dumps(accepted(review)).encode())
            return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})
        known = {**HONEST, **LYING, **CONVERTING, **MISCONVERTING}
        respond: Callable[[Review], Any] = known.get(path, accepted)
        response = accepted(review) if path.startswith("append") and is_delete else respond(review)
        text = response if isinstance(response, str) else json.dumps(response)
        return web.Response(text=text, content_type="text/html" if path == "html" else "application/json")


def write_certificate(root: Path, *names: str) -> tuple[Path, Path]:
    """Write a key with its certificate for these names and addresses, and the authority that has signed it."""
    now = datetime.datetime.now(datetime.UTC)
    ca, key = pki.authority(root / "hooks", now), keys.generate_key()
    addresses = tuple(name for name in names if name.replace(".", "").isdecimal())
    dns_names = tuple(name for name in names if name not in addresses)
    requested = keys.create_request(key, Subject("hook", dns_names=dns_names, ip_addresses=addresses))
    signed = pki.sign_request(ca, requested, SERVER_USAGES, 3600, now)
    certificate, authority = root / "hook.pem", root / "hook-ca.pem"
    certificate.write_bytes(key + signed)
    authority.write_bytes(ca.pem)
    return certificate, authority


@asynccontextmanager
async def running_webhooks(root: Path, *names: str, address: str = "127.0.0.1") -> AsyncIterator[WebhookServer]:
    """Run a server with a certificate for these names and addresses, of an authority of its own."""
    certificate, authority = write_certificate(root, *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = WebhookServer(0, base64.b64encode(authority.read_bytes()).decode())
    app = web.Application(client_max_size=8 << 20)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
        for transport in server.transports:
            transport.abort()  # The master keeps connections, and TLS would wait for its answer to the end.
        await asyncio.sleep(0.01)
