"""The setting identityProviders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from master.__main__ import main
from master.auth import pki
from master.auth.identity_providers.config import KINDS, InvalidIdentityProviders, load_identity_providers
from master.auth.identity_providers.ldap import LDAPProvider
from master.auth.identity_providers.openid import OpenIDProvider
from master.config import MasterConfig, config_problems
from reconcile.config_file import InvalidConfig, load, merge
from tests.unit.master.signing import NOW

NAMES = "1 to 253 characters except ':', '/', '%' and spaces are accepted, and neither '.' nor '..'"
FILES = "the path of a file is accepted"
REPOSITORY = Path(__file__).resolve().parents[5]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that the providers below name."""
    path = tmp_path_factory.mktemp("providers")
    authority = pki.authority(path, NOW)
    client = pki.client_identity(authority, "master", (), NOW)
    (path / "client.crt").write_bytes(client.certificate)
    (path / "client.key").write_bytes(client.key)
    (path / "users.htpasswd").write_text("")
    (path / "secret").write_text("from a file\n")
    (path / "empty").write_text("\n")
    return path


PROVIDERS: dict[str, dict[str, Any]] = {
    "AllowAllPasswordIdentityProvider": {},
    "DenyAllPasswordIdentityProvider": {},
    "HTPasswdPasswordIdentityProvider": {"file": "users.htpasswd"},
    "BasicAuthPasswordIdentityProvider": {
        "url": "https://users.example/check",
        "ca": "ca.crt",
        "certFile": "client.crt",
        "keyFile": "client.key",
    },
    "LDAPPasswordIdentityProvider": {
        "url": "ldap://ldap.example/ou=people,dc=example?uid",
        "bindDN": "cn=search,dc=example",
        "bindPassword": {"file": "secret"},
        "ca": "ca.crt",
        "insecure": False,
        "attributes": {"id": ["dn"], "preferredUsername": ["uid"], "name": ["cn"], "email": ["mail"]},
    },
    "KeystonePasswordIdentityProvider": {"url": "https://keystone.example:5000", "domainName": "Default"},
    "RequestHeaderIdentityProvider": {
        "loginURL": "https://proxy.example/login/oauth/authorize?${query}",
        "clientCA": "ca.crt",
        "clientCommonNames": ["proxy"],
        "headers": ["X-Remote-User"],
        "preferredUsernameHeaders": ["X-Remote-Login"],
        "nameHeaders": ["X-Remote-Name"],
        "emailHeaders": ["X-Remote-Email"],
    },
    "OpenIDIdentityProvider": {
        "clientID": "podlane",
        "clientSecret": "secret",
        "ca": "ca.crt",
        "extraScopes": ["email"],
        "extraAuthorizeParameters": {"prompt": "login"},
        "issuer": "https://login.example",
        "claims": {"preferredUsername": ["upn"], "groups": ["groups"]},
    },
}
"""A complete form of each kind."""


def document(kind: str, name: str = "people", **changes: Any) -> dict[str, Any]:
    fields = {key: value for key, value in (PROVIDERS[kind] | changes).items() if value is not None}
    return {"name": name, "login": True, "provider": {"apiVersion": "v1", "kind": kind, **fields}}


def problems(directory: Path, *documents: object) -> list[str]:
    with pytest.raises(InvalidIdentityProviders) as raised:
        load_identity_providers(documents, directory)
    return [line.removeprefix("identityProviders[0].") for line in str(raised.value).splitlines()]


def test_every_kind_is_loaded_in_order(directory: Path) -> None:
    assert PROVIDERS.keys() == KINDS.keys()
    documents = [document(kind, f"p{number}") for number, kind in enumerate(PROVIDERS)]
    loaded = load_identity_providers(documents, directory)
    assert [provider.name for provider in loaded] == [f"p{number}" for number in range(len(PROVIDERS))]
    assert all(provider.is_login and not provider.is_challenge for provider in loaded)
    assert {provider.mapping_method for provider in loaded} == {"claim"}


def test_a_secret_may_be_in_a_file(directory: Path) -> None:
    (provider,) = load_identity_providers([document("LDAPPasswordIdentityProvider")], directory)
    assert isinstance(provider.authenticator, LDAPProvider)
    assert provider.authenticator._directory.bind_password == "from a file"
    assert "from a file" not in repr(provider.authenticator._directory)
    (provider,) = load_identity_providers(
        [document("OpenIDIdentityProvider", clientSecret={"file": "secret"})], directory
    )
    assert isinstance(provider.authenticator, OpenIDProvider)
    assert provider.authenticator._client.secret == "from a file"


def test_every_problem_is_named_by_its_path(directory: Path) -> None:
    entries = [
        {"name": "a:b", "lgin": True, "mappingMethod": "guess", "provider": {}},
        {"name": "a:b", "provider": {"apiVersion": "v2", "kind": "LDAP"}},
        "text",
        document("HTPasswdPasswordIdentityProvider", "a", file="missing"),
        document("HTPasswdPasswordIdentityProvider", "a", file=1, fil="x"),
        document("HTPasswdPasswordIdentityProvider", "b", file=None),
        document("HTPasswdPasswordIdentityProvider", "..", file="."),
    ]
    found = problems(directory, *entries)
    assert found == [
        'lgin: is not a field; did you mean "login"?',
        "mappingMethod: found 'guess'; add, claim, generate, lookup are accepted",
        f"identityProviders[1].name: found 'a:b'; {NAMES}",
        "identityProviders[1].provider.apiVersion: found 'v2'; v1 is accepted",
        f"identityProviders[1].provider.kind: found 'LDAP'; {', '.join(KINDS)} are accepted",
        "identityProviders[2]: found a text; a mapping is accepted",
        f"identityProviders[3].provider.file: found '{directory}/missing', which is no file; {FILES}",
        "identityProviders[4].name: found 'a'; a name that no other provider has is accepted",
        'identityProviders[4].provider.fil: is not a field; did you mean "file"?',
        "identityProviders[4].provider.file: found 1; a text is accepted; put it in quotes",
        "identityProviders[5].provider.file: is missing; a text is accepted",
        f"identityProviders[6].name: found '..'; {NAMES}",
        f"identityProviders[6].provider.file: found '{directory}', which is no file; {FILES}",
    ]


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("BasicAuthPasswordIdentityProvider", {"url": "http://users.example"}, "provider.url: found 'http://"),
        (
            "BasicAuthPasswordIdentityProvider",
            {"url": "https://u:p@users.example"},
            "provider.url: found 'https://...@users.example'",
        ),
        (
            "BasicAuthPasswordIdentityProvider",
            {"ca": "empty"},
            "provider.ca: found a file that cannot be used (NO_CERTIFICATE_OR_CRL_FOUND); CA cert",
        ),
        ("BasicAuthPasswordIdentityProvider", {"keyFile": None}, "provider: found one of certFile and keyFile"),
        (
            "BasicAuthPasswordIdentityProvider",
            {"keyFile": "ca.key"},
            "provider.certFile: found a file that cannot be used (KEY_VALUES_MISMATCH); a cert",
        ),
        ("KeystonePasswordIdentityProvider", {"domainName": ""}, "provider.domainName: found an empty text; the name"),
        ("LDAPPasswordIdentityProvider", {"url": "ldap://h/?uid?tree"}, "provider.url: found 'ldap://h/?uid?tree'"),
        ("LDAPPasswordIdentityProvider", {"bindDN": None}, "provider: found one of bindDN and bindPassword"),
        (
            "LDAPPasswordIdentityProvider",
            {"bindPassword": 12345},
            "provider.bindPassword: found a number; a text or {file: PATH}",
        ),
        (
            "LDAPPasswordIdentityProvider",
            {"bindPassword": {"env": "X"}},
            "provider.bindPassword: found a mapping; a text or {file: PATH}",
        ),
        (
            "LDAPPasswordIdentityProvider",
            {"bindPassword": {"file": "empty"}},
            "provider.bindPassword.file: found the empty file",
        ),
        ("LDAPPasswordIdentityProvider", {"attributes": {"id": []}}, "provider.attributes.id: found an empty list; at"),
        ("LDAPPasswordIdentityProvider", {"attributes": {"id": ["a b"]}}, "provider.attributes: found 'a b'"),
        (
            "LDAPPasswordIdentityProvider",
            {"attributes": {"idd": ["a"], "id": ["a"]}},
            "provider.attributes.idd: is",
        ),
        ("LDAPPasswordIdentityProvider", {"insecure": True}, "provider.insecure: found true; false is accepted"),
        (
            "LDAPPasswordIdentityProvider",
            {"insecure": True, "ca": None, "url": "ldaps://h/"},
            "provider.insecure: found true; false is accepted",
        ),
        ("RequestHeaderIdentityProvider", {"clientCA": None}, "provider.clientCA: is missing"),
        (
            "RequestHeaderIdentityProvider",
            {"clientCA": "empty"},
            "provider.clientCA: found a file that cannot be used (it has another form)",
        ),
        ("RequestHeaderIdentityProvider", {"headers": []}, "provider.headers: found an empty list; at least"),
        ("RequestHeaderIdentityProvider", {"loginURL": "https://p/"}, "provider.loginURL: found 'https://p/'; an"),
        ("RequestHeaderIdentityProvider", {"loginURL": "http://p/?${query}"}, "provider.loginURL: found 'http://p/"),
        ("RequestHeaderIdentityProvider", {"loginURL": None}, "provider.loginURL: is missing"),
        ("OpenIDIdentityProvider", {"issuer": None}, "provider: found both or none of issuer and urls"),
        ("OpenIDIdentityProvider", {"urls": {"authorize": "", "token": ""}}, "provider: found both or none of issuer"),
        ("OpenIDIdentityProvider", {"issuer": "http://login.example"}, "provider.issuer: found 'http://login.example'"),
        (
            "OpenIDIdentityProvider",
            {"issuer": None, "urls": {"authorize": "https://h"}},
            "provider.urls.token: is",
        ),
        ("OpenIDIdentityProvider", {"clientSecret": ""}, "provider.clientSecret: found an empty text; the value"),
        ("OpenIDIdentityProvider", {"claims": {"id": "sub"}}, "provider.claims.id: found a text; a list is accepted"),
        (
            "OpenIDIdentityProvider",
            {"extraAuthorizeParameters": {"state": "x"}},
            "provider.extraAuthorizeParameters: found state, which the master sets",
        ),
    ],
)
def test_a_problem_of_a_kind(kind: str, changes: dict[str, Any], problem: str, directory: Path) -> None:
    load_identity_providers([document(kind)], directory)
    (found,) = problems(directory, document(kind, **changes))
    assert problem in found
    assert "12345" not in found


def test_openid_is_not_for_challenges(directory: Path) -> None:
    (found,) = problems(directory, document("OpenIDIdentityProvider") | {"challenge": True})
    assert found == "challenge: found true; false is accepted, because OpenID needs a browser"


def test_a_challenge_by_redirect_is_the_only_one(directory: Path) -> None:
    url = "https://proxy.example/challenge?${query}"
    header = document("RequestHeaderIdentityProvider", "proxy", challengeURL=url) | {"challenge": True}
    load_identity_providers([header, document("DenyAllPasswordIdentityProvider")], directory)
    (found,) = problems(directory, header, document("DenyAllPasswordIdentityProvider") | {"challenge": True})
    assert found == (
        "challenge: found true; false is accepted with a challenge of identityProviders[1], "
        "because a redirect must be the only one"
    )


def test_a_provider_that_accepts_everything_is_warned_about(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_identity_providers([document("DenyAllPasswordIdentityProvider")], directory)
        assert not caplog.records
        load_identity_providers([document("AllowAllPasswordIdentityProvider")], directory)
    assert [record.message for record in caplog.records] == [
        "identity provider accepts every password: everybody can be anybody"
    ]


def test_check_of_the_configuration_names_wrong_providers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "master.yaml"
    missing = document("HTPasswdPasswordIdentityProvider", file=str(tmp_path / "none"))
    for entries, code in (([document("DenyAllPasswordIdentityProvider")], 0), ([missing], 2)):
        file.write_text(yaml.safe_dump({"identityProviders": entries, "advertiseAddress": "127.0.0.1"}))
        monkeypatch.setattr("sys.argv", ["podlane-master", "--config", str(file), "--check"])
        with pytest.raises(SystemExit) as exited:
            main()
        assert exited.value.code == code
    assert "identityProviders[0].provider.file" in capsys.readouterr().err


def test_the_setting_is_part_of_the_configuration_of_the_master(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [document(kind) for kind in PROVIDERS]
    file = tmp_path / "master.yaml"
    file.write_text(yaml.safe_dump({"identityProviders": entries}))
    with pytest.raises(SystemExit) as exited:
        load(MasterConfig, "podlane-master", str(file), ["--check"])
    assert exited.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["identityProviders"] == entries
    settings = merge(MasterConfig, {"identityProviders": entries}, {})
    assert config_problems(settings) == ()
    assert settings.identity_providers == tuple(entries)
    for wrong in ({"identityProvider": entries}, {"identityProviders": {"name": "x"}}):
        with pytest.raises(InvalidConfig, match="identityProvider"):
            merge(MasterConfig, wrong, {})


def test_examples_of_the_documentation_are_accepted(directory: Path) -> None:
    text = (REPOSITORY / "docs" / "operations" / "users.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    examples = [entry for block in blocks for entry in (yaml.safe_load(block) or {}).get("identityProviders", [])]
    assert {entry["provider"]["kind"] for entry in examples} == KINDS.keys()
    for entry in examples:
        for key in ("file", "ca", "certFile", "keyFile", "clientCA"):
            if key in entry["provider"]:
                entry["provider"][key] = PROVIDERS[entry["provider"]["kind"]].get(key, "ca.crt")
        for key in ("bindPassword", "clientSecret"):
            if key in entry["provider"]:
                entry["provider"][key] = {"file": "secret"}
        load_identity_providers([entry], directory)
