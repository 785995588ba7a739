"""What `podlane login` says of wrong arguments."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml

from cli.__main__ import main
from tests.testbed.self_signed import self_signed

URL = "https://127.0.0.1:1"


@pytest.mark.parametrize(
    "url",
    [
        "http://a:1",
        "https://red:hunter2@a:1",
        "https://a:99999",
        "https://a:x",
        "https://",
        "a:1",
        "https://[::1",
    ],
)
def test_wrong_url_is_not_repeated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["login", url, "-u", "red", "-p", "x"]) == 2
    assert capsys.readouterr().err == "podlane: the URL is not of the form https://HOST:PORT, which is accepted\n"


@pytest.mark.parametrize("content", [b"", b"  \n", b"words", "Schl\u00fcssel".encode(), b"\xff"])
def test_file_without_a_certificate_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(content)
    assert main(["login", URL, "-u", "red", "-p", "x", "--certificate-authority", str(file)]) == 2
    accepted = "a CA certificate in PEM is accepted"
    assert capsys.readouterr().err == f"podlane: {file} has no certificate; {accepted}\n"
    missing = tmp_path / "missing"
    assert main(["login", URL, "-u", "red", "-p", "x", "--certificate-authority", str(missing)]) == 2
    assert "No such file or directory; a file with a CA certificate is accepted" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "option"), [([], "Username: standard input"), (["-u", "red"], "Password: ")])
@pytest.mark.filterwarnings("ignore::getpass.GetPassWarning")
def test_end_of_standard_input_is_a_sentence(
    arguments: list[str],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    self_signed(tmp_path)
    certificate = tmp_path / "pem"
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr("getpass.getpass", input)
    assert main(["login", URL, "--certificate-authority", str(certificate), *arguments]) == 2
    assert "standard input has ended; -" in capsys.readouterr().err


def test_ca_of_the_kubeconfig_is_used_for_the_same_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    self_signed(tmp_path)
    certificate = tmp_path / "pem"
    file = tmp_path / "config"
    cluster = {"server": URL, "certificate-authority": str(certificate)}
    document = {
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": "x"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    file.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert main(["login", URL, "-u", "red", "-p", "x"]) == 1
    assert "does not answer: Connection refused" in capsys.readouterr().err
    assert main(["login", "https://127.0.0.1:2", "-u", "red", "-p", "x"]) == 2
    assert "--certificate-authority is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "content", "problem"),
    [
        (["-u", "red", "-p", "x"], b"y", "-p and --password-stdin are given; one of them is accepted"),
        ([], b"y", "--password-stdin needs -u NAME"),
        (["-u", "red"], b"\xff", "standard input is not text; a password in UTF-8 is accepted"),
    ],
)
def test_password_of_standard_input_is_refused(
    arguments: list[str],
    content: bytes,
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    self_signed(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    login = ["login", URL, "--certificate-authority", str(tmp_path / "pem"), "--password-stdin"]
    assert main([*login, *arguments]) == 2
    assert capsys.readouterr().err == f"podlane: {problem}\n"
