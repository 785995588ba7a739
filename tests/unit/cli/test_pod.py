"""`podlane pod`, against the socket that the node agent serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.__main__ import main
from node_agent.sources.local_api import LocalApiSource
from tests.testbed.node.events import FakeEventRecorder

WEB = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: red}
spec: {containers: [{name: main, image: toolbox}]}
"""
WRONG = WEB.replace("image:", "imagine:").replace("main", "Main")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[LocalApiSource]:
    local_api_source = LocalApiSource(
        tmp_path / "socket", tmp_path / "kept", "node-1", lambda: None, FakeEventRecorder()
    )
    task = asyncio.create_task(local_api_source.run())
    while not (tmp_path / "socket").exists():
        await asyncio.sleep(0.001)
    yield local_api_source
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def podlane(root: Path, *words: str) -> int:
    return await asyncio.to_thread(main, ["pod", *words, f"--socket={root / 'socket'}"])


def pod_names(node: LocalApiSource) -> list[str]:
    return [pod.metadata.name for offer in node.source_pods for pod in offer.pods]


async def test_podlane_pod_submits_replaces_and_deletes_a_pod(
    node: LocalApiSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(WEB + "---\n" + WEB.replace("web", "db").replace(", namespace: red", ""))
    assert await podlane(tmp_path, "submit", str(file)) == 0
    assert capsys.readouterr().out == (
        "red/web: submitted, runs as web-node-1\ndefault/db: submitted, runs as db-node-1\n"
    )
    file.write_text(WEB.replace("toolbox", "toolbox:2"))
    assert await podlane(tmp_path, "submit", str(file)) == 0
    assert capsys.readouterr().out == "red/web: replaced, runs as web-node-1\n"
    assert await podlane(tmp_path, "delete", "red/web", "db") == 0
    assert capsys.readouterr().out == "red/web: ends\ndefault/db: ends\n"
    assert pod_names(node) == []
    assert await podlane(tmp_path, "delete", "db") == 1
    assert capsys.readouterr().out == 'default/db: pods "db" was not submitted to the namespace "default"\n'


async def test_podlane_pod_reports_errors_by_path_and_submits_the_rest(
    node: LocalApiSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: red}\n"
    secretive = WEB.replace("web", "other").replace("spec: {", "spec: {volumes: [{name: v, secret: {secretName: s}}], ")
    file = tmp_path / "web.yaml"
    file.write_text("---\n".join((WRONG, namespace, secretive, WEB.replace("name: web", "generateName: web-"), WEB)))
    assert await podlane(tmp_path, "submit", str(file)) == 1
    reported = capsys.readouterr().out
    for part in (
        f"{file} document 1: ",
        "spec.containers[0].imagine",
        "spec.containers[0].name",
        f"{file} document 2: ",
        'kind  is "Namespace"',
        f"{file} document 3: ",
        "spec.volumes[0].secret",
        f"{file} document 4: ",
        "metadata.name",
        "red/web: submitted",
    ):
        assert part in reported, part
    assert pod_names(node) == ["web-node-1"]


async def test_podlane_pod_fails_without_a_node_agent_or_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(WEB)
    assert await podlane(tmp_path, "submit", str(file)) == 1
    assert f"no node agent answers on {tmp_path / 'socket'}" in capsys.readouterr().out
    assert await podlane(tmp_path, "submit", str(tmp_path / "none")) == 1
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("submit",), ("delete",), ("delete", "a/b/c"), ("delete", "/web"), ("list",), ()])
async def test_podlane_pod_reports_wrong_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["pod", *words])
    assert end.value.code == 2
    assert "usage: podlane pod" in capsys.readouterr().err


async def test_podlane_pod_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["pod", "submit", "--help"])
    assert end.value.code == 0
    assert "FILE" in capsys.readouterr().out
