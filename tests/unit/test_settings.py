"""The settings of the three daemons as an operator meets them: a wrong file, and the sentences that are printed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import master.config
import node_agent.config
import sdn.config
from api.client.kubeconfig import Kubeconfig
from master.auth import pki
from reconcile.config_file import InvalidConfig, merge
from tests.unit.master.signing import NOW

PROGRAMS = {"master": "podlane-master", "node_agent": "podlane-node-agent", "sdn": "podlane-sdn"}
SETTINGS: dict[str, Any] = {
    "master": master.config.MasterConfig,
    "node_agent": node_agent.config.Settings,
    "sdn": sdn.config.Settings,
}
SECRET = "hunter2"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with files that are right, and some that are not."""
    path = tmp_path_factory.mktemp("files")
    authority = pki.authority(path, NOW)
    client = pki.client_identity(authority, "node", (), NOW)
    (path / "node.crt").write_bytes(client.certificate)
    (path / "node.key").write_bytes(client.key)
    config = Kubeconfig("https://10.245.2.2:8443", authority.pem, client.certificate, client.key)
    (path / "kubeconfig").write_text(config.text("podlane", "node"))
    (path / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    (path / "empty").write_text("")
    (path / "text").write_text(f"{SECRET}\n")
    (path / "users").write_text("amy:{SHA}" + "A" * 27 + "=\n\n")
    return path


def required(daemon: str, files: Path) -> dict[str, Any]:
    """Return settings with which a daemon starts."""
    if daemon == "master":
        return {"stateDir": str(files), "advertiseAddress": "127.0.0.1"}
    return {
        "nodeName": "node-1",
        "nodeIp": "10.245.2.3",
        "kubeconfig": str(files / "kubeconfig"),
        "resolvConf": str(files / "resolv.conf"),
    }


Check = Callable[[str, str], tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs a daemon's command with --check on a text, and returns exit code and errors."""

    def run(daemon: str, text: str) -> tuple[int, str]:
        file = tmp_path / "settings.yaml"
        file.write_text(text)
        monkeypatch.setattr("sys.argv", [PROGRAMS[daemon], "--config", str(file), "--check"])
        with pytest.raises(SystemExit) as exited:
            importlib.import_module(f"{daemon}.__main__").main()
        assert isinstance(exited.value.code, int)
        return exited.value.code, capsys.readouterr().err

    return run


def printed(check: Check, daemon: str, settings: object, files: Path) -> list[str]:
    """Return the problems of settings, with DIR for the directory of the files."""
    code, errors = check(daemon, yaml.safe_dump(settings))
    assert (code == 2) == bool(errors)
    prefix = f"{PROGRAMS[daemon]}: "
    lines = errors.splitlines()
    assert all(line.startswith(prefix) and "\\n" not in line for line in lines)
    return [line.removeprefix(prefix).replace(str(files), "DIR") for line in lines]


def provider(kind: str, **fields: object) -> dict[str, Any]:
    config = {"apiVersion": "v1", "kind": f"{kind}IdentityProvider", **fields}
    return {"identityProviders": [{"name": "people", "login": True, "provider": config}]}


LDAP = {"url": "ldap://h/dc=x", "attributes": {"id": ["dn"]}}
OPENID = {"clientID": "podlane", "issuer": "https://login.example"}
P = "identityProviders[0].provider"

WRONG: list[tuple[str, object, list[str]]] = [
    # Texts and types.
    ("master", {"port": "8443"}, ["port: found '8443'; a whole number from 0 to 65535 is accepted"]),
    ("master", {"port": 8443.5}, ["port: found 8443.5; a whole number from 0 to 65535 is accepted"]),
    ("master", {"port": None}, ["port: found nothing; a whole number from 0 to 65535 is accepted"]),
    ("master", {"mtu": 100}, ["mtu: found 100; a whole number from 576 to 65536 or nothing is accepted"]),
    ("master", {"plugin": "ovs"}, ["plugin: found 'ovs'; ovs-multitenant, ovs-subnet are accepted"]),
    ("master", {"auditLogMode": "blocking"}, ["auditLogMode: found 'blocking'; batch, blocking-strict are accepted"]),
    ("master", {"selfProvisioning": "yes please"}, ["selfProvisioning: found 'yes please'; true or false is accepted"]),
    ("master", {"stateDir": 7}, ["stateDir: found 7; a text is accepted; put it in quotes"]),
    ("master", {"selfProvisionin": True}, ['selfProvisionin: is not a setting; did you mean "selfProvisioning"?']),
    ("master", {"DNS": True}, ['DNS: is not a setting; the closest setting is "dnsPort"']),
    ("master", {"listenAddress": "all"}, ["listenAddress: found 'all'; an IP address is accepted"]),
    ("master", {"advertiseAddress": "fd00::1"}, ["advertiseAddress: found 'fd00::1'; an IPv4 address is accepted"]),
    (
        "master",
        {"masterPublicURL": f"https://u:{SECRET}@m.example"},
        [
            "masterPublicURL: found 'https://...@m.example'; https://HOST or https://HOST:PORT is accepted, without a "
            "slash at the end"
        ],
    ),
    (
        "master",
        {"moreClusterNetworks": [{"cidr": "10.0.0.0/8", "hostSubnetLengt": 9}]},
        [
            'moreClusterNetworks[0].hostSubnetLengt: is not a field; did you mean "hostSubnetLength"?',
            "moreClusterNetworks[0].hostSubnetLength: is missing; a whole number from 2 to 30 is accepted",
        ],
    ),
    (
        "master",
        {"hostSubnetLength": 20},
        ["hostSubnetLength: found 20; at most 18 is accepted, the host bits of clusterNetwork 10.128.0.0/14"],
    ),
    ("sdn", {"nodeName": 7}, ["nodeName: found 7; a text is accepted; put it in quotes"]),
    ("sdn", {"nodeIp": None}, ["nodeIp: found nothing; a text is accepted"]),
    (
        "node_agent",
        {"nodeName": "Node_1", "nodeIp": "10.245.2", "clusterDns": ["10.1.1.1", "dns"], "kubeReserved": "cpus=1"},
        [
            "nodeName: found 'Node_1'; a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
            "characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex "
            "used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "nodeIp: found '10.245.2'; an IP address is accepted",
            "clusterDns[1]: found 'dns'; an IP address is accepted",
            "kubeReserved: found 'cpus=1'; RESOURCE=AMOUNT with cpu, memory, ephemeral-storage is accepted",
        ],
    ),
    ("node_agent", {"network": "ovn"}, ["network: found 'ovn'; cni, none, sdn are accepted"]),
    (
        "node_agent",
        {"registerWithTaints": ["gpu:Never"]},
        [
            "registerWithTaints[0]: found 'gpu:Never'; KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute "
            "is accepted"
        ],
    ),
    (
        "node_agent",
        {"containerLogMaxSize": "10 MB"},
        ["containerLogMaxSize: found '10 MB'; an amount of bytes such as 10Mi is accepted"],
    ),
    # Secrets.
    (
        "node_agent",
        {"manifestUrlHeaders": {"Authorization": [f"Bearer {SECRET}"]}},
        ["manifestUrlHeaders.Authorization: found a list; a text is accepted"],
    ),
    (
        "node_agent",
        {"manifestUrlHeaders": [f"Authorization: {SECRET}"]},
        ["manifestUrlHeaders: found a list; a mapping is accepted"],
    ),
    (
        "node_agent",
        {"manifestUrl": f"ftp://host/?token={SECRET}"},
        ["manifestUrl: found a text; a URL with http or https is accepted"],
    ),
    ("master", {"identityProviders": SECRET}, ["identityProviders: found a text; a list is accepted"]),
    ("master", {"identityProviders": [[SECRET]]}, ["identityProviders[0]: found a list; a mapping is accepted"]),
    (
        "master",
        {"identityProviders": {"bindPassword": SECRET}},
        ["identityProviders: found a mapping; a list is accepted"],
    ),
    (
        "master",
        provider("LDAPPassword", **LDAP, bindDN="cn=x", bindPassword=[SECRET]),
        [f"{P}.bindPassword: found a list; a text or {{file: PATH}} is accepted"],
    ),
    (
        "master",
        provider("LDAPPassword", **LDAP, bindDN="cn=x", bindPassword={SECRET: None}),
        [f"{P}.bindPassword: found a mapping; a text or {{file: PATH}} is accepted"],
    ),
    (
        "master",
        provider("LDAPPassword", **LDAP, bindPasword=SECRET),
        [f'{P}.bindPasword: is not a field; did you mean "bindPassword"?'],
    ),
    ("master", provider("OpenID", **OPENID), [f"{P}.clientSecret: is missing; a text or {{file: PATH}} is accepted"]),
    (
        "master",
        provider("OpenID", **OPENID, clientSecret=20260101),
        [f"{P}.clientSecret: found a number; a text or {{file: PATH}} is accepted"],
    ),
    # Files.
    (
        "master",
        provider("HTPasswdPassword", file="users.htpasswd"),
        [f"{P}.file: found 'DIR/users.htpasswd', which is no file; the path of a file is accepted"],
    ),
    (
        "sdn",
        {"kubeconfig": "DIR/none"},
        ["kubeconfig: DIR/none: No such file or directory; a readable file is accepted"],
    ),
    ("sdn", {"resolvConf": "DIR"}, ["resolvConf: found 'DIR', which is no file; the path of a file is accepted"]),
    (
        "node_agent",
        {"tlsCertFile": "DIR/node.crt"},
        ["tlsCertFile, tlsPrivateKeyFile: found one without the other; both or none is accepted"],
    ),
    (
        "node_agent",
        {"kubeconfig": "DIR/none", "bootstrapKubeconfig": "DIR/text"},
        ["bootstrapKubeconfig: DIR/text: not a kubeconfig but a text; clusters, users and contexts are accepted"],
    ),
    (
        "node_agent",
        {"clientCaFile": "DIR/none", "tlsCertFile": "DIR/none", "tlsPrivateKeyFile": "DIR/node.key"},
        [
            "clientCaFile: found 'DIR/none', which is no file; the path of a file is accepted",
            "tlsCertFile: found 'DIR/none', which is no file; the path of a file is accepted",
        ],
    ),
    (
        "master",
        {"kubeconfig": "DIR/text"},
        ["kubeconfig: DIR/text: not a kubeconfig but a text; clusters, users and contexts are accepted"],
    ),
    (
        "master",
        {"auditPolicyFile": "DIR/none", "projectRequestTemplate": "DIR/text"},
        [
            "auditPolicyFile: DIR/none: cannot be read: No such file or directory; a YAML file is accepted",
            "projectRequestTemplate: DIR/text: the document: found a text; a Template or a List is accepted",
        ],
    ),
]


@pytest.mark.parametrize(("daemon", "settings", "problems"), WRONG)
def test_a_wrong_setting_is_named_with_what_was_found_and_what_is_accepted(
    daemon: str, settings: dict[str, Any], problems: list[str], files: Path, check: Check
) -> None:
    assert printed(check, daemon, required(daemon, files), files) == []
    given = msgspec.json.decode(msgspec.json.encode(settings).replace(b"DIR", str(files).encode()))
    assert printed(check, daemon, {**required(daemon, files), **given}, files) == problems


@pytest.mark.parametrize("daemon", SETTINGS)
def test_every_setting_names_itself_and_no_contents_of_lists_and_mappings(daemon: str, files: Path) -> None:
    good = required(daemon, files)
    merge(SETTINGS[daemon], good, {})
    for field in msgspec.structs.fields(SETTINGS[daemon]):
        key = field.encode_name
        for wrong in ([[SECRET]], {"key": [SECRET]}, {"file": {"x": SECRET}}, [{"key": SECRET}]):
            if key == "identityProviders" and isinstance(wrong, list) and isinstance(wrong[0], dict):
                continue  # Its entries are judged with the files that they name.
            with pytest.raises(InvalidConfig) as raised:
                merge(SETTINGS[daemon], {**good, key: wrong}, {})
            (line, *_) = str(raised.value).splitlines()
            assert line.startswith(key)
            assert "found " in line or "is not a field" in line
            assert SECRET not in str(raised.value)


@pytest.mark.parametrize("daemon", SETTINGS)
def test_a_file_that_is_no_mapping_of_settings_is_named(daemon: str, tmp_path: Path, check: Check) -> None:
    file = tmp_path / "settings.yaml"
    prog = PROGRAMS[daemon]
    assert check(daemon, f"- {SECRET}\n") == (2, f"{prog}: {file}: found a list; a mapping of settings is accepted\n")
    for text, problem in (
        (f"stateDir: '{SECRET}\n", "line 2, column 1: found unexpected end of stream; one YAML document is accepted"),
        (
            "stateDir: a\nstateDir: b\n",
            "line 2, column 1: the key stateDir is there twice; one YAML document is accepted",
        ),
    ):
        assert check(daemon, text) == (2, f"{prog}: {file}: {problem}\n")


def test_check_of_the_master_judges_policy_and_template(files: Path, tmp_path: Path, check: Check) -> None:
    policy, template = tmp_path / "policy.yaml", tmp_path / "template.yaml"
    policy.write_text("rules:\n- level: All\n- level: None\n  user: [amy]\n")
    template.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [
                    {
                        "apiVersion": "project.openshift.io/v1",
                        "kind": "Project",
                        "metadata": {"name": "${PROJECT_NAME}"},
                    },
                    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"p": f"{SECRET} "}},
                ],
            }
        )
    )
    settings = {
        **required("master", files),
        "auditPolicyFile": str(policy),
        "projectRequestTemplate": str(template),
    }
    assert printed(check, "master", settings, tmp_path) == [
        'auditPolicyFile: DIR/policy.yaml: rules[1].user: is not a field; did you mean "users"?',
        "projectRequestTemplate: DIR/template.yaml: items[1].data[p]: found a value that is not shown; bytes in base64 "
        "is accepted",
    ]
    policy.write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n")
    template.write_bytes((Path(master.__file__).parent / "registry" / "project_request_template.yaml").read_bytes())
    assert printed(check, "master", settings, tmp_path) == []


def test_check_of_the_master_judges_the_lines_of_password_files(files: Path, tmp_path: Path, check: Check) -> None:
    users = tmp_path / "users"
    settings = {**required("master", files), **provider("HTPasswdPassword", file=str(users))}
    sha, apr1, bcrypt = "{SHA}" + "A" * 27 + "=", "$apr1$saltsalt$" + "A" * 22, "$2y$10$" + "A" * 53
    users.write_text(f"amy:{sha}\nbob:{apr1}\n\ncat:{bcrypt}\n")
    assert printed(check, "master", settings, tmp_path) == []
    users.write_text(f"amy:{SECRET}\n{SECRET}\nbob:{sha}\nbob:{apr1}\n:{sha}\ncat:{bcrypt.replace('10', '18')}\n")
    accepted = "bcrypt (htpasswd -B) up to the cost 17, Apache's MD5 (-m) and SHA-1 (-s) are accepted"
    path = f"{P}.file: DIR/users"
    assert printed(check, "master", settings, tmp_path) == [
        f"{path}: line 1: found a hash of another form; {accepted}",
        f"{path}: line 2: found no name before a colon; NAME:HASH is accepted",
        f"{path}: line 4: found the name of line 3; each name is accepted once",
        f"{path}: line 5: found no name before a colon; NAME:HASH is accepted",
        f"{path}: line 6: found a hash of another form; {accepted}",
    ]


def test_check_of_the_node_agent_judges_its_certificate_and_authorities(files: Path, check: Check) -> None:
    good = {
        **required("node_agent", files),
        "tlsCertFile": str(files / "node.crt"),
        "tlsPrivateKeyFile": str(files / "node.key"),
        "clientCaFile": str(files / "ca.crt"),
    }
    assert printed(check, "node_agent", good, files) == []
    wrong = {**good, "tlsPrivateKeyFile": str(files / "ca.key"), "clientCaFile": str(files / "text")}
    authority, pair = printed(check, "node_agent", wrong, files)
    assert authority.startswith("clientCaFile: DIR/text: found no certificates: ")
    assert pair.startswith("tlsCertFile, tlsPrivateKeyFile: found files that do not go together: ")


def test_a_reason_of_several_lines_is_several_lines_of_the_log(tmp_path: Path) -> None:
    program = """
import sys, master.__main__
from reconcile.errors import Refused
async def refuse(settings): raise Refused("first problem\\nsecond problem")
master.__main__._serve_api = refuse
sys.exit(master.__main__.main())
"""
    file = tmp_path / "master.yaml"
    file.write_text("port: 0\nadvertiseAddress: 127.0.0.1\n")
    words = [sys.executable, "-c", program, "--config", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line.partition(" ")[2] for line in done.stderr.splitlines()] == [
        'level=error msg="cannot run" error="first problem"',
        'level=error msg="cannot run" error="second problem"',
    ]
