"""`podlane login` and `podlane logout` with a master."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest
import yaml

from api.client.client import ApiError, Client
from api.client.kubeconfig import Kubeconfig
from api.core.auth import SelfSubjectReview
from cli.__main__ import main
from tests.testbed.apiserver.oauth import PASSWORDS, server_with_users
from tests.testbed.apiserver.process import ApiServer


def log_in(server: ApiServer, user: str, file: Path) -> None:
    ca = server.root / "state" / "pki" / "ca.crt"
    words = ["login", server.url, "-u", user, "-p", PASSWORDS[user], "--certificate-authority", str(ca)]
    assert main([*words, "--kubeconfig", str(file)]) == 0


def log_out(file: Path) -> int:
    return main(["logout", "--kubeconfig", str(file)])


async def user_name(config: Kubeconfig) -> str:
    async with Client(config) as client:
        return (await client.create_review(SelfSubjectReview())).status.user_info.username


def test_login_reads_the_password_from_standard_input(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ca = tmp_path / "config", server.root / "state" / "pki" / "ca.crt"
    words = ["login", server.url, "-u", "bob", "--password-stdin", "--certificate-authority", str(ca)]
    for ending, code in ((b"\n", 0), (b"wrong\n", 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PASSWORDS["bob"].encode() + ending)))
        assert main([*words, "--kubeconfig", str(file)]) == code
    assert asyncio.run(user_name(Kubeconfig.load(file))) == "bob"


def test_logout_ends_the_token_and_removes_it(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    log_in(server, "bob", file)
    bob = Kubeconfig.load(file)
    log_in(server, "alice", file)
    alice = Kubeconfig.load(file)
    document = yaml.safe_load(file.read_text())
    document["users"].append({"name": "copy", "user": {"token": alice.token}})
    document["users"].append({"name": "empty", "user": None})
    file.write_text(yaml.safe_dump(document))
    assert asyncio.run(user_name(alice)) == "alice"
    capsys.readouterr()
    assert log_out(file) == 0
    assert capsys.readouterr().out == f'Logged "alice" out on "{server.url}"\n'
    with pytest.raises(ApiError) as raised:
        asyncio.run(user_name(alice))
    assert raised.value.status.code == 401
    assert asyncio.run(user_name(bob)) == "bob"
    assert alice.token not in file.read_text()
    assert bob.token in file.read_text()
    left = yaml.safe_load(file.read_text())
    assert [user["name"] for user in left["users"]] == [user["name"] for user in document["users"]]
    assert {key: left[key] for key in ("clusters", "contexts", "current-context")} == {
        key: document[key] for key in ("clusters", "contexts", "current-context")
    }
    assert file.stat().st_mode & 0o777 == 0o600
    assert log_out(file) == 2
    assert "You must have a token in order to logout." in capsys.readouterr().err


def test_token_that_has_ended_is_removed(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, copy = tmp_path / "config", tmp_path / "copy"
    log_in(server, "alice", file)
    copy.write_text(file.read_text())
    assert log_out(copy) == 0
    capsys.readouterr()
    assert log_out(file) == 0
    assert capsys.readouterr().out.startswith("The token had ended on ")
    assert not Kubeconfig.load(file).token


def test_token_stays_if_the_master_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, file = server_with_users(tmp_path), tmp_path / "config"
    server.start()
    log_in(server, "alice", file)
    text = file.read_text()
    assert server.stop() == 0
    assert log_out(file) == 1
    assert server.url in capsys.readouterr().err
    assert file.read_text() == text
    server.start()
    assert log_out(file) == 0
    assert server.stop() == 0


def test_token_of_a_service_account_is_not_logged_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config"
    file.write_text(Kubeconfig("https://127.0.0.1:1", b"", token="eyJ.a.b").text("cluster", "robot"))
    text = file.read_text()
    assert log_out(file) == 2
    assert "sha256~... is accepted" in capsys.readouterr().err
    assert file.read_text() == text
