"""`podlane version`, with a server that answers and with one that does not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api.client.kubeconfig import Kubeconfig
from cli.__main__ import main
from master.server.discovery import VERSION

CLIENT = f"Client Version: v{importlib.metadata.version('podlane')}\n"


@pytest.fixture
async def answers() -> list[web.Response]:
    return []


@pytest.fixture
async def file(answers: list[web.Response], tmp_path: Path) -> AsyncIterator[Path]:
    async def version(_: web.Request) -> web.Response:
        return answers.pop()

    app = web.Application()
    app.router.add_get("/version", version)
    async with TestServer(app) as server:
        config = tmp_path / "config"
        config.write_text(Kubeconfig(f"http://127.0.0.1:{server.port}", b"", token="t").text("a", "a"))
        yield config


async def podlane(*words: str) -> int:
    return await asyncio.to_thread(main, ["version", *words])


async def test_versions_are_printed_as_by_kubectl(
    answers: list[web.Response], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [web.json_response(VERSION), web.json_response(VERSION)]
    assert await podlane(f"--kubeconfig={file}") == 0
    master = f"Master Version: {CLIENT.rsplit(maxsplit=1)[-1]}\n"
    assert capsys.readouterr().out == f"{CLIENT}Server Version: {VERSION['gitVersion']}\n{master}"
    assert await podlane(f"--kubeconfig={file}", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["serverVersion"] == VERSION
    assert document["clientVersion"]["gitVersion"] == CLIENT.rsplit(maxsplit=1)[-1]


@pytest.mark.parametrize("body", ["no JSON", "[]", "{}", '{"gitVersion": 5}'])
async def test_the_client_version_is_printed_whatever_the_server_answers(
    body: str, answers: list[web.Response], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append(web.Response(text=body))
    assert await podlane(f"--kubeconfig={file}") == 1
    printed = capsys.readouterr()
    assert printed.out == CLIENT
    assert printed.err.startswith("podlane: the response to /version ")


async def test_the_client_version_needs_no_kubeconfig(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = f"--kubeconfig={tmp_path / 'missing'}"
    assert await podlane("--client", missing) == 0
    assert capsys.readouterr() == (CLIENT, "")
    assert await podlane(missing) == 1
    assert capsys.readouterr() == (
        CLIENT,
        f"podlane: {tmp_path / 'missing'}: No such file or directory; a readable file is accepted\n",
    )
