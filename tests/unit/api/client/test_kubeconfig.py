"""Kubeconfigs as kubectl, kubeadm and Podlane write them."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def document(name: str, **changes: Any) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, user and context of this name; None removes a part."""
    parts = {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}}],
        "users": [{"name": name, "user": {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
        **changes,
    }
    return {key: value for key, value in parts.items() if value is not None}


def test_files_are_merged_as_kubectl_merges_them(tmp_path: Path) -> None:
    first, second, third = (tmp_path / folder / "config" for folder in ("1", "2", "3"))
    for file in (first, second, third):
        file.parent.mkdir()
    context = {"name": "b", "context": {"cluster": "b", "user": "a"}}
    first.write_text(yaml.safe_dump(document("a", **{"current-context": None, "contexts": [context]})))
    second.write_text(yaml.safe_dump(document("b", users=[{"name": "b", "user": {"tokenFile": "token"}}])))
    third.write_text(yaml.safe_dump(document("a", users=[{"name": "a", "user": {"token": "of the third file"}}])))
    merged = Kubeconfig.load_merged([tmp_path / "missing", first, second, third])
    assert (merged.server, merged.token) == ("https://b", "a"), "the first file with an entry decides"
    (tmp_path / "2" / "token").write_text("relative")
    assert Kubeconfig.load_merged([second, first]).token == "relative", "paths are relative to their file"
    with pytest.raises(BadKubeconfig, match=r"none of the files .*1/none, .*2/none exists"):
        Kubeconfig.load_merged([tmp_path / "1" / "none", tmp_path / "2" / "none"])


CONTEXT = {"cluster": "a", "user": "a"}
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}
WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([1], "X: not a kubeconfig but a list; clusters, users and contexts are accepted"),
    "nothing": (
        {},
        "X: current-context is missing; there are no contexts, and a file with a cluster, "
        "a user and a context is accepted",
    ),
    "a text": ("hello", "X: not a kubeconfig but a text; clusters, users and contexts are accepted"),
    "no current context": (
        document("a", **{"current-context": None}),
        "X: current-context is missing; 'a' is accepted",
    ),
    "a number as context": (
        document("a", **{"current-context": 5}),
        "X: current-context is a number; a text is accepted",
    ),
    "unknown context": (
        document("a", **{"current-context": "b"}),
        "X: current-context names the context 'b', which does not exist; 'a' is accepted",
    ),
    "unknown user": (
        document("a", contexts=[{"name": "a", "context": {**CONTEXT, "user": "eve"}}]),
        "X: the context 'a' names the user 'eve', which does not exist; 'a' is accepted",
    ),
    "no users": (
        document("a", users=None),
        "X: the context 'a' names the user 'a', which does not exist; there are no users, and a file with a cluster, "
        "a user and a context is accepted",
    ),
    "unknown cluster": (
        document("a", contexts=[{"name": "a", "context": {**CONTEXT, "cluster": "mars"}}]),
        "X: the context 'a' names the cluster 'mars', which does not exist; 'a' is accepted",
    ),
    "context without user": (
        document("a", contexts=[{"name": "a", "context": {"cluster": "a"}}]),
        "X: the context 'a' has no user; one is needed",
    ),
    "no server": (
        document("a", clusters=[{"name": "a", "cluster": {}}]),
        "X: the cluster 'a' has no server; one is needed",
    ),
    "server without scheme": (
        document("a", clusters=[{"name": "a", "cluster": {"server": "a:6443"}}]),
        "X: the cluster 'a': server is 'a:6443'; https://HOST:PORT is accepted",
    ),
    "clusters as mapping": (document("a", clusters={"a": {}}), "X: clusters is a mapping; a list is accepted"),
    "user without name": (document("a", users=[{"user": {}}]), "X: users[0] has no name; a text is accepted"),
    "user as text": (document("a", users=["a"]), "X: users[0] is a text; a mapping is accepted"),
    "credentials as text": (
        document("a", users=[{"name": "a", "user": "secret"}]),
        "X: the user 'a' is a text; a mapping is accepted",
    ),
    "number as token": (
        document("a", users=[{"name": "a", "user": {"token": 123}}]),
        "X: the user 'a': token is a number; a text is accepted (perhaps quotes are missing)",
    ),
    "bad base64": (
        document("a", users=[{"name": "a", "user": {"client-key-data": "%%%"}}]),
        "X: the user 'a': client-key-data is not base64 (Only base64 data is allowed); base64 of PEM is accepted",
    ),
    "cut base64": (
        document(
            "a", clusters=[{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "abc"}}]
        ),
        "X: the cluster 'a': certificate-authority-data is not base64 (Incorrect padding); base64 of PEM is accepted",
    ),
    "missing certificate": (
        document("a", users=[{"name": "a", "user": {"client-certificate": "gone.pem"}}]),
        "X: the user 'a': client-certificate FOLDER/gone.pem: No such file or directory; a readable file is accepted",
    ),
    "folder as token": (
        document("a", users=[{"name": "a", "user": {"tokenFile": "."}}]),
        "X: the user 'a': tokenFile FOLDER: Is a directory; a readable file is accepted",
    ),
    "auth-provider": (
        document("a", users=[{"name": "a", "user": {"auth-provider": {"name": "gcp"}}}]),
        "X: the user 'a' has an auth-provider; a certificate, a token, a tokenFile or exec is accepted",
    ),
    "exec without command": (
        document("a", users=[{"name": "a", "user": {"exec": {"apiVersion": "v1"}}}]),
        "X: the user 'a' has no command; one is needed",
    ),
    "exec with a text": (
        document("a", users=[{"name": "a", "user": {"exec": "aws"}}]),
        "X: the user 'a': exec is a text; a mapping is accepted",
    ),
    "exec with one argument": (
        document("a", users=[{"name": "a", "user": {"exec": {**EXEC, "args": "token"}}}]),
        "X: the user 'a': args of exec is not a list of texts; for example [token, --quiet] is accepted",
    ),
    "exec with a mapping as environment": (
        document("a", users=[{"name": "a", "user": {"exec": {**EXEC, "env": {"A": "b"}}}}]),
        "X: the user 'a': env of exec is not a list of name and value; texts are accepted",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_kubeconfig_is_one_sentence(case: str, tmp_path: Path) -> None:
    wrong, sentence = WRONG[case]
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(document("a")))
    assert Kubeconfig.load(file).token == "a"
    file.write_text(yaml.safe_dump(wrong))
    with pytest.raises(BadKubeconfig) as raised:
        Kubeconfig.load(file)
    assert str(raised.value).replace(str(file), "X").replace(str(tmp_path), "FOLDER") == sentence


@pytest.mark.parametrize("data", [b"a: [", b"\xff\xfe\x00", b"a: \xff", b"\tx", b"[" * 5000, b"a: &a [*a]\nb: *c"])
def test_data_that_is_not_yaml_is_one_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(BadKubeconfig) as raised:
        Kubeconfig.load(tmp_path / "x")
    sentence = str(raised.value)
    assert sentence.startswith(f"{tmp_path / 'x'}: not YAML (")
    assert sentence.endswith("); a kubeconfig is accepted")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            Kubeconfig("https://a", b"no PEM"),
            "the cluster 'c': certificate-authority is no certificate; PEM is accepted",
        ),
        (Kubeconfig("https://a", b"\xff"), "the cluster 'c': certificate-authority is no certificate; PEM is accepted"),
        (
            Kubeconfig("https://a", PEM, b"no PEM", KEY),
            "the user 'u': client-certificate is no certificate; PEM is accepted",
        ),
        (
            Kubeconfig("https://a", PEM, PEM, b"no PEM"),
            "the user 'u': client-key is no key; PEM without a password is accepted",
        ),
        (
            Kubeconfig("https://a", PEM, PEM),
            "the user 'u': client-key is missing; the key of client-certificate is needed",
        ),
        (
            Kubeconfig("https://a", PEM, key=KEY),
            "the user 'u' has a client-key and no client-certificate; both or neither are accepted",
        ),
        (
            Kubeconfig("https://a", PEM, PEM, OTHER),
            "the user 'u': client-certificate and client-key do not go together; the certificate's key is accepted",
        ),
    ],
)
def test_an_unreadable_certificate_is_one_sentence(config: Kubeconfig, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(config.text("c", "u"))
    with pytest.raises(BadKubeconfig) as raised:
        Kubeconfig.load(tmp_path / "x").ssl_context()
    assert str(raised.value) == f"{tmp_path / 'x'}: {sentence}"


def test_merging_keeps_other_entries_and_names_those_of_another_server() -> None:
    mine, theirs = Kubeconfig("https://mine", PEM, token="abc"), Kubeconfig("https://theirs", PEM, token="def")
    others = {**document("other"), "preferences": {"colors": True}, "extensions": [{"since": "2026-01-01"}]}
    text = yaml.safe_dump(others).replace("'2026-01-01'", "2026-01-01")
    merged = mine.merged_into(text, "lab", "lab")
    assert mine.merged_into(merged, "lab", "lab") == merged
    after = yaml.safe_load(merged.replace(" 2026-01-01", " '2026-01-01'"))
    assert after["current-context"] == "lab"
    for section in ("clusters", "users", "contexts"):
        assert [entry["name"] for entry in after[section]] == ["other", "lab"]
        assert after[section][0] == others[section][0]
    assert (after["preferences"], after["extensions"]) == (others["preferences"], others["extensions"])
    assert mine.conflicts(merged, "lab", "lab") == ()
    assert theirs.conflicts(merged, "lab", "lab") == (
        "the cluster 'lab' of https://mine",
        "the context 'lab' of https://mine",
    )
    assert theirs.conflicts(merged, "new", "other") == ("the user 'other' of https://other",)


@pytest.mark.parametrize("text", ["", "{}", "a: b", "contexts: []\ncurrent-context: x"])
def test_text_that_is_no_kubeconfig_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(BadKubeconfig, match=str(tmp_path / "x")):
        Kubeconfig.load(tmp_path / "x")
