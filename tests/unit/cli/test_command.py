"""What commands check of their arguments before they begin."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import pytest

from api.core.pod import Pod, PodSpec, PodStatus
from api.meta.types import List, ListMeta, ObjectMeta
from cli.__main__ import build_parser, main
from cli.capture import take
from cli.command import InputError, require_writable, whole_number


@pytest.mark.parametrize("text", ["0", "-1", "11", "1.5", "", "x", "\u0663", "1" * 5000])
def test_numbers_out_of_their_range_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a whole number from 1 to 10"):
        whole_number(10)(text)


def test_numbers_in_their_range_are_accepted() -> None:
    assert [whole_number(10)(text) for text in ("1", "10")] == [1, 10]
    parsed = build_parser().parse_args(["network", "capture", "red/a", "--packets=1000", "--seconds=60"])
    assert (parsed.packets, parsed.seconds) == (1000, 60)


@pytest.mark.parametrize("option", ["--packets=0", "--packets=1001", "--seconds=0", "--seconds=61"])
def test_limits_of_a_capture_are_wrong_use(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["network", "capture", "red/a", option])
    assert ended.value.code == 2
    name, _, number = option.partition("=")
    assert f"argument {name}: '{number}' is not a whole number from 1 to" in capsys.readouterr().err


def test_files_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "new")
    (tmp_path / "old").touch()
    require_writable(tmp_path / "old")
    with pytest.raises(InputError, match="there is no directory"):
        require_writable(tmp_path / "nowhere" / "x")
    with pytest.raises(InputError, match="is a directory; the name of a file is accepted"):
        require_writable(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written"):
        require_writable(tmp_path / "new")


class OnePod:
    """A client of a cluster with one pod. Any request but a list fails the test."""

    async def list(self, kind: type[Any]) -> List[Any]:
        pod = Pod(
            metadata=ObjectMeta(name="a", namespace="red"),
            spec=PodSpec(containers=(), node_name="node-1"),
            status=PodStatus(pod_ip="10.128.0.2", phase="Running"),
        )
        return List(kind="PodList", api_version="v1", metadata=ListMeta(), items=(pod,))


async def test_a_capture_that_cannot_be_written_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = Namespace(pod="red/a", packets=1, seconds=1, out=str(tmp_path / "nowhere" / "x"))
    with pytest.raises(InputError, match="there is no directory"):
        await take(OnePod(), arguments)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    with pytest.raises(AttributeError, match="create"):
        await take(OnePod(), Namespace(**{**vars(arguments), "out": "-"}))  # type: ignore[arg-type]
    assert "at most 1 packets of red/a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "usage", "problem"),
    [
        ("network isolate --foo red", "network isolate", "unrecognized arguments: --foo"),
        ("node token --ttl 0", "node token", "unrecognized arguments: --ttl 0"),
        ("networks", "", "argument TOPIC: invalid choice: 'networks'; did you mean 'network'?"),
        ("network isolat red", "network", "argument COMMAND: invalid choice: 'isolat'; did you mean 'isolate'?"),
        (
            "network trace a b --proto tpc",
            "network trace",
            "argument --proto: invalid choice: 'tpc'; did you mean 'tcp'?",
        ),
        ("network xyz", "network", "argument COMMAND: invalid choice: 'xyz' (choose from 'status', "),
    ],
)
def test_wrong_words_get_the_usage_of_their_command(
    words: str, usage: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    error, prog = capsys.readouterr().err, f"podlane {usage}".strip()
    assert error.startswith(f"usage: {prog} [-h]")
    assert f"\n{prog}: error: " in error
    assert problem in error
