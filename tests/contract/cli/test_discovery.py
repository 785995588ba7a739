"""Servers between a joining machine and its master."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from api.client.client import ClientError, InvalidResponse, OtherAuthority
from api.client.discovery import MAX_BYTES, UntrustedServer, fetch_accepted, fetch_verified
from api.client.kubeconfig import Kubeconfig
from api.pki import keys
from tests.testbed.identity_providers.https_server import https_server, server_files


def cluster_info(*authorities: bytes) -> bytes:
    ca = base64.b64encode(b"".join(authorities)).decode()
    kubeconfig = {"clusters": [{"name": "", "cluster": {"certificate-authority-data": ca, "server": "https://x"}}]}
    data = {"kubeconfig": yaml.safe_dump(kubeconfig)}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": data}).encode()


async def test_authority_beside_the_right_one_is_not_trusted(tmp_path: Path) -> None:
    """The certificate of the real authority is public: a server between shows it with its own."""
    files = server_files(tmp_path)
    own = files.authority.read_bytes()
    _, real = keys.create_authority(datetime.datetime.now(datetime.UTC))
    (own_hash,), (real_hash,) = keys.certificates_by_key_hash(own), keys.certificates_by_key_hash(real)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=cluster_info(real, own), content_type="application/json")

    async with https_server(files, answer) as url:
        info = await fetch_accepted(url, [real_hash])
        assert [*keys.certificates_by_key_hash(info.ca)] == [real_hash]
        with pytest.raises(OtherAuthority, match="its certificate is of another authority than the expected one"):
            await fetch_verified(Kubeconfig(url, info.ca))
        with pytest.raises(UntrustedServer, match=f"{real_hash}"):
            await fetch_accepted(url, [f"sha256:{'0' * 64}"])
        trusted = await fetch_accepted(url, [own_hash])
        assert [*keys.certificates_by_key_hash((await fetch_verified(Kubeconfig(url, trusted.ca))).ca)] == [
            real_hash,
            own_hash,
        ]


BOMB = b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (c + 1, c + 1, c, c) for c in range(97, 121))

NUMBER = "clusters: [{cluster: {certificate-authority-data: 7}}]"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 200),
        (b"[]", {}, 200),
        (b"{" * 10_000, {}, 200),
        (cluster_info(b"no certificate"), {}, 200),
        (cluster_info(), {}, 200),
        (json.dumps({"data": {"kubeconfig": "[" * 20_000}}).encode(), {}, 200),
        (json.dumps({"data": {"kubeconfig": BOMB.decode()}}).encode(), {}, 200),
        (
            json.dumps({"data": {"kubeconfig": "clusters: [{cluster: {certificate-authority-data: 7}}]"}}).encode(),
            {},
            200,
        ),
        (b" " * (MAX_BYTES + 1), {}, 200),
        (gzip.compress(b" " * (64 << 20)), {"Content-Encoding": "gzip"}, 200),
        (cluster_info(), {"Location": "https://127.0.0.1:1/"}, 302),
        (cluster_info(), {}, 404),
    ],
    ids=[
        "empty",
        "list",
        "open",
        "garbage",
        "none",
        "deep",
        "aliases",
        "number",
        "long",
        "gzip",
        "redirect",
        "missing",
    ],
)
async def test_answer_of_a_hostile_server_is_an_error(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=headers, status=status)

    async with https_server(server_files(tmp_path), answer) as url:
        with pytest.raises(InvalidResponse):
            await fetch_accepted(url, [f"sha256:{'0' * 64}"])


async def test_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ClientError, match=r"https://127\.0\.0\.1:1 does not answer"):
        await fetch_accepted("https://127.0.0.1:1", [f"sha256:{'0' * 64}"])
