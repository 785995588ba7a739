"""The providers BasicAuth and Keystone with servers that answer as theirs do. There is no real Keystone here."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from master.auth import pki
from master.auth.identity_providers import remote
from master.auth.identity_providers.basic_auth import BasicAuthProvider
from master.auth.identity_providers.config import load_identity_providers
from master.auth.identity_providers.keystone import KeystoneProvider
from master.auth.identity_providers.provider import PasswordProvider, ProviderError, ProviderIdentity
from master.auth.identity_providers.remote import RemoteClient
from tests.testbed.identity_providers.https_server import Handler, ServerFiles, https_server
from tests.testbed.ports import free_port

USER = {"sub": "1001", "name": "Alice Liddell", "preferred_username": "alice", "email": "alice@example.org", "x": [1]}
ALICE = ProviderIdentity("remote", "1001", "Alice Liddell", "alice@example.org", "alice")


async def basic_auth_server(request: web.Request) -> web.Response:
    credentials = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
    if request.method != "GET" or request.headers["Accept"] != "application/json":
        return web.Response(status=400)
    if credentials != "alice:wonder:länd":
        return web.json_response({}, status=401)
    return web.json_response(USER)


async def keystone(request: web.Request) -> web.Response:
    """Answer as Keystone: POST /v3/auth/tokens. Names of users are not case-sensitive."""
    if (request.method, request.path) != ("POST", "/v3/auth/tokens"):
        return web.Response(status=404)
    auth = (await request.json())["auth"]
    user = auth["identity"]["password"]["user"]
    assert auth["identity"]["methods"] == ["password"]
    assert auth["scope"] == "unscoped"
    if (user["domain"], user["name"].lower(), user["password"]) != ({"name": "Default"}, "alice", "wonder:länd"):
        return web.json_response({"error": {"code": 401, "title": "Unauthorized"}}, status=401)
    found = {"id": "0ca8f6", "name": "Alice", "domain": {"id": "default", "name": "Default"}}
    token = {"methods": ["password"], "user": found, "issued_at": "2026-01-01T00:00:00Z"}
    return web.json_response({"token": token}, status=201, headers={"X-Subject-Token": "gAAAA"})


def load(kind: str, **fields: Any) -> PasswordProvider:
    form = {"apiVersion": "v1", "kind": kind, **fields}
    (loaded,) = load_identity_providers([{"name": "remote", "login": True, "provider": form}], Path("/"))
    assert isinstance(loaded.authenticator, BasicAuthProvider | KeystoneProvider)
    return loaded.authenticator


def basic_auth(url: str, files: ServerFiles) -> PasswordProvider:
    return load("BasicAuthPasswordIdentityProvider", url=url, ca=str(files.authority))


async def test_basic_auth_server_checks_passwords(files: ServerFiles) -> None:
    async with https_server(files, basic_auth_server) as url:
        provider = basic_auth(url, files)
        assert await provider.authenticate_password("alice", "wonder:länd") == ALICE
        for name, password in (("alice", "x"), ("bob", "wonder:länd"), ("alice:wonder", "länd"), ("alice", "")):
            assert await provider.authenticate_password(name, password) is None


async def test_host_names_are_looked_up_in_threads_of_their_own(
    files: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's own look-ups use the threads in which the master decodes bodies and writes its audit log."""
    async with https_server(files, basic_auth_server) as url:
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", None)
        provider = basic_auth(url.replace("127.0.0.1", "localhost"), files)
        assert await provider.authenticate_password("alice", "wonder:länd") == ALICE
        with pytest.raises(ProviderError, match="too long"):
            await basic_auth(f"https://{'a' * 64}.example", files).authenticate_password("alice", "x")


async def test_keystone_checks_passwords(files: ServerFiles) -> None:
    async with https_server(files, keystone) as url:
        fields = {"domainName": "Default", "ca": str(files.authority)}
        for path in ("", "/", "/v3", "/v3/"):
            provider = load("KeystonePasswordIdentityProvider", url=url + path, **fields)
            assert await provider.authenticate_password("alice", "wonder:länd") == ProviderIdentity("remote", "Alice")
            assert await provider.authenticate_password("alice", "x") is None
            assert await provider.authenticate_password("alice", "") is None
        provider = load("KeystonePasswordIdentityProvider", url=url, useKeystoneIdentity=True, **fields)
        alice = ProviderIdentity("remote", "0ca8f6", preferred_username="Alice")
        assert await provider.authenticate_password("ALICE", "wonder:länd") == alice
        other = load("KeystonePasswordIdentityProvider", url=url, **fields | {"domainName": "Other"})
        assert await other.authenticate_password("alice", "wonder:länd") is None


async def test_master_shows_its_client_certificate(files: ServerFiles, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = pki.authority(tmp_path, now)
    client = pki.client_identity(authority, "master", (), now)
    (tmp_path / "crt").write_bytes(client.certificate)
    (tmp_path / "key").write_bytes(client.key)
    shown = []

    async def serve(request: web.Request) -> web.Response:
        assert request.transport is not None
        shown.append(request.transport.get_extra_info("peercert"))
        return web.json_response(USER)

    async with https_server(files, serve, client_authority=tmp_path / "ca.crt") as url:
        certificate = {"certFile": str(tmp_path / "crt"), "keyFile": str(tmp_path / "key")}
        provider = load("BasicAuthPasswordIdentityProvider", url=url, ca=str(files.authority), **certificate)
        assert await provider.authenticate_password("alice", "x") == ALICE
        with pytest.raises(ProviderError):
            await basic_auth(url, files).authenticate_password("alice", "x")
    assert [certificate["subject"] for certificate in shown] == [((("commonName", "master"),),)]


async def test_server_that_compresses_what_it_may_is_read(files: ServerFiles) -> None:
    async def serve(_request: web.Request) -> web.Response:
        response = web.json_response(USER)
        response.enable_compression()
        return response

    async with https_server(files, serve) as url:
        assert await basic_auth(url, files).authenticate_password("alice", "x") == ALICE


def answer(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return serve


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (answer(302, Location="https://evil.example/"), r"redirect \(302\)"),
        (answer(307, Location="/"), r"redirect \(307\)"),
        (answer(500, b"{}"), "status 500"),
        (answer(403), "status 403"),
        (answer(200, b"<html>Log in</html>"), "no such JSON"),
        (answer(200, b""), "no such JSON"),
        (answer(200, b"[]"), "no such JSON"),
        (answer(200, b"[" * 60_000), "no such JSON"),
        (answer(200, b"\xff"), "no such JSON"),
        (answer(200, b'{"sub": 1001}'), "no such JSON"),
        (answer(200, b"{}"), "user id ''"),
        (answer(200, b'{"sub": "a\\u0000b"}'), "user id"),
        (answer(200, b'{"sub": "' + b"x" * 1025 + b'"}'), "user id"),
        (answer(200, b'{"sub": "1001", "error": "closed"}'), "'closed'"),
        (answer(200, b'{"sub": "' + b"x" * 65536 + b'"}'), "larger than 65536"),
        (answer(200, gzip.compress(b'{"sub": "1001"}'), **{"Content-Encoding": "gzip"}), "no such JSON"),
    ],
)
async def test_other_answers_are_errors(files: ServerFiles, handler: Handler, text: str) -> None:
    async with https_server(files, handler) as url:
        with pytest.raises(ProviderError, match=text):
            await basic_auth(url, files).authenticate_password("alice", "x")


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (answer(200, b"{}"), "status 200"),
        (answer(300, b"{}"), "redirect"),
        (answer(201, b"{}"), "no such JSON"),
        (answer(201, b'{"token": {"user": {"id": "1", "name": ""}}}'), "user id ''"),
    ],
)
async def test_other_answers_of_keystone_are_errors(files: ServerFiles, handler: Handler, text: str) -> None:
    async with https_server(files, handler) as url:
        fields = {"url": url, "domainName": "Default", "ca": str(files.authority)}
        with pytest.raises(ProviderError, match=text):
            await load("KeystonePasswordIdentityProvider", **fields).authenticate_password("alice", "x")


async def test_redirected_password_is_not_sent_again(files: ServerFiles) -> None:
    asked = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with https_server(files, serve) as url:
        with pytest.raises(ProviderError):
            await basic_auth(f"{url}/check", files).authenticate_password("alice", "x")
    assert asked == ["/check"]


async def test_certificates_are_verified(files: ServerFiles, tmp_path: Path) -> None:
    pki.authority(tmp_path, datetime.datetime.now(datetime.UTC))
    async with https_server(files, basic_auth_server) as url:
        other = load("BasicAuthPasswordIdentityProvider", url=url, ca=str(tmp_path / "ca.crt"))
        for provider in (other, load("BasicAuthPasswordIdentityProvider", url=url)):
            with pytest.raises(ProviderError, match="certificate verify failed"):
                await provider.authenticate_password("alice", "wonder:länd")
    async with https_server(files, basic_auth_server, address="127.0.0.2") as url:
        with pytest.raises(ProviderError, match=r"not valid for '127\.0\.0\.2'"):
            await basic_auth(url, files).authenticate_password("alice", "wonder:länd")


async def test_server_that_is_gone_or_slow_is_an_error(files: ServerFiles) -> None:
    with pytest.raises(ProviderError, match="Cannot connect"):
        await basic_auth(f"https://127.0.0.1:{free_port()}", files).authenticate_password("alice", "x")
    context = ssl.create_default_context(cafile=files.authority)
    for begins in (False, True):
        go_on = asyncio.Event()

        async def serve(
            request: web.Request, begins: bool = begins, go_on: asyncio.Event = go_on
        ) -> web.StreamResponse:
            response = web.StreamResponse()
            if begins:
                await response.prepare(request)
                await response.write(b"{")
            await go_on.wait()
            return response

        async with https_server(files, serve) as url:
            provider = BasicAuthProvider("remote", url, RemoteClient(context, timeout=0.1))
            with pytest.raises(ProviderError, match=r"no answer within 0\.1 s"):
                await provider.authenticate_password("alice", "x")
            go_on.set()


async def test_requests_beyond_the_limit_are_rejected(files: ServerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_REQUESTS", 2)
    async with https_server(files, basic_auth_server) as url:
        provider = basic_auth(url, files)
        logins = [provider.authenticate_password("alice", "wonder:länd") for _ in range(3)]
        results = await asyncio.gather(*logins, return_exceptions=True)
        assert results[:2] == [ALICE, ALICE]
        assert isinstance(results[2], ProviderError)
        assert await provider.authenticate_password("alice", "wonder:länd") == ALICE
