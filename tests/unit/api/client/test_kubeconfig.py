"""Kubeconfigs as kubectl, kubeadm and Podlane write them."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization

from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.pki import keys
from api.pki.pem import Subject

NOW = datetime.datetime.now(datetime.UTC)
KEY = keys.generate_key()
PEM = keys.self_signed(KEY, Subject("system:node:n1", ("system:nodes",)), NOW)
OTHER = keys.generate_key()


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write a kubeconfig with this context and others that are not current."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "b", "cluster": {"server": "https://b"}},
            {"name": "a", "cluster": {"server": "https://a:6443/", **cluster}},
        ],
        "users": [{"name": "x", "user": {"token": "x"}}, {"name": "me", "user": user}],
        "contexts": [
            {"name": "other", "context": {"cluster": "b", "user": "x"}},
            {"name": "mine", "context": {"cluster": "a", "user": "me"}},
        ],
        "current-context": "mine",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_kubeconfig_reads_key_and_certificate_from_one_file(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "first.pem").write_bytes(PEM + KEY)
    (tmp_path / "pki" / "current.pem").symlink_to("first.pem")
    (tmp_path / "ca.crt").write_bytes(PEM)
    named = {"client-certificate": "pki/current.pem", "client-key": str(tmp_path / "pki" / "current.pem")}
    path = written(tmp_path, {"certificate-authority": "ca.crt"}, named)
    config = Kubeconfig.load(path)
    assert (config.server, config.ca) == ("https://a:6443", PEM)
    config.ssl_context()
    before = config.file_versions()
    (tmp_path / "pki" / "second.pem").write_bytes(PEM + KEY)
    (tmp_path / "pki" / "current.pem").unlink()
    (tmp_path / "pki" / "current.pem").symlink_to("second.pem")
    assert config.file_versions() != before


def test_kubeconfig_reads_a_token_inline_or_from_a_file(tmp_path: Path) -> None:
    assert Kubeconfig.load(written(tmp_path, {}, {"token": "abc"})).token == "abc"
    (tmp_path / "token").write_text("def\n")
    config = Kubeconfig.load(written(tmp_path, {}, {"tokenFile": "token", "token": "abc"}))
    assert config.token == "def"
    assert tmp_path / "token" in config.files


def test_kubeconfig_reads_tls_server_name_and_insecure_skip_verify(tmp_path: Path) -> None:
    config = Kubeconfig.load(written(tmp_path, {"tls-server-name": "kubernetes", "insecure-skip-tls-verify": True}, {}))
    assert config.server_name == "kubernetes"
    assert config.ssl_context().verify_mode == ssl.CERT_NONE
    plain = Kubeconfig.load(written(tmp_path, {}, {}))
    assert (plain.server_name, plain.ssl_context().verify_mode) == ("", ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    "config",
    [
        Kubeconfig("https://a", PEM, PEM, KEY),
        Kubeconfig("https://a", PEM, token="abc"),
        Kubeconfig("https://a", b"", PEM, KEY, server_name="b", insecure=True),
    ],
)
def test_written_kubeconfig_is_read_back(config: Kubeconfig, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(config.text("cluster", "user"))
    kubeconfig = Kubeconfig.load(tmp_path / "x")
    for name in ("server", "ca", "certificate", "key", "token", "server_name", "insecure"):
        assert getattr(kubeconfig, name) == getattr(config, name)


def test_renewed_kubeconfig_changes_only_the_users_identity(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"client-certificate": "x.pem", "client-key": "x.pem"})
    (tmp_path / "x.pem").write_bytes(PEM + KEY)
    document = yaml.safe_load(path.read_text())
    text = Kubeconfig.load(path).with_client_certificate(b"certificate", b"key")
    path.write_text(text)
    after = Kubeconfig.load(path)
    assert (after.certificate, after.key, after.files) == (b"certificate", b"key", (path,))
    changed = yaml.safe_load(text)
    for part in ("clusters", "contexts", "current-context"):
        assert changed[part] == document[part]
    assert changed["users"][0] == document["users"][0]


@pytest.mark.parametrize("text", ["", "[]", "{}", "a: b", "contexts: []\ncurrent-context: x", "\tx"])
def test_text_that_is_no_kubeconfig_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(BadKubeconfig, match=str(tmp_path / "x")):
        Kubeconfig.load(tmp_path / "x")


def test_kubeconfig_names_its_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadKubeconfig, match=r"gone\.pem"):
        Kubeconfig.load(written(tmp_path, {}, {"client-certificate": "gone.pem"}))


def test_kubeconfig_with_a_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(Kubeconfig("https://a", PEM, PEM, OTHER).text("a", "b"))
    with pytest.raises(BadKubeconfig, match="do not go together"):
        Kubeconfig.load(tmp_path / "x").ssl_context()


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("current-context", None, "current-context: found nothing; a text is accepted"),
        ("current-context", "", "current-context: found an empty text; a text is accepted"),
        (
            "current-context",
            "theirs",
            "current-context: found 'theirs'; a name in contexts is accepted: other, mine",
        ),
        ("contexts", {"mine": 1}, "contexts: found a mapping; a list is accepted"),
        ("contexts.1.context", [SECRET], "contexts[1].context: found a list; a mapping is accepted"),
        (
            "contexts.1.context.user",
            "you",
            "contexts[1].context.user: found 'you'; a name in users is accepted: x, me",
        ),
        ("clusters", [], "contexts[1].context.cluster: found 'a'; a name in clusters is accepted: there is none"),
        ("clusters.1.cluster.server", None, "clusters[1].cluster.server: found nothing; a text is accepted"),
        (
            "clusters.1.cluster.certificate-authority-data",
            f"{SECRET}:::",
            "clusters[1].cluster.certificate-authority-data: found what is no base64; base64 is accepted",
        ),
        ("users.1.user.token", [SECRET], "users[1].user.token: found a list; a text is accepted"),
        (
            "users.1.user.client-key-data",
            f"{SECRET}=x",
            "users[1].user.client-key-data: found what is no base64; base64 is accepted",
        ),
        ("users.1.user", SECRET, "users[1].user: found a text; a mapping is accepted"),
    ],
)
def test_problem_of_a_kubeconfig_is_named_by_its_path_and_without_credentials(
    path: str, value: object, problem: str, tmp_path: Path
) -> None:
    file = written(tmp_path, {}, {"token": SECRET})
    Kubeconfig.load(file)
    document = yaml.safe_load(file.read_text())
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(BadKubeconfig) as raised:
        Kubeconfig.load(file)
    assert str(raised.value) == f"{file}: {problem}"


def test_text_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(f"users:\n- token: '{SECRET}\n")
    with pytest.raises(BadKubeconfig) as raised:
        Kubeconfig.load(file)
    assert str(raised.value) == f"{file}: line 3, column 1: found no YAML; a kubeconfig is accepted"


def test_key_with_a_password_is_rejected_and_not_asked_for(tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(KEY, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(SECRET.encode()),
    )
    good, bad = (Kubeconfig("https://a", PEM, PEM, each) for each in (KEY, encrypted))
    good.ssl_context()
    with pytest.raises(BadKubeconfig, match="do not go together"):
        bad.ssl_context()
