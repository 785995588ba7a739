"""`podlane bundle` on a host with a master and a node: nothing secret is in the archive, and what helps is."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from cli.__main__ import main
from cli.bundle import collect as collecting
from cli.bundle.archive import MAX_MEMBER, Archive
from cli.command import InputError
from cli.doctor.host import AgentSettings, Host, MasterSettings, SdnSettings
from cli.doctor.observations import Configuration
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.sync_client import SyncClient

PLANTED = {
    "secret": "planted-secret-value-01",
    "string": "planted-string-data-02",
    "applied": "planted-applied-value-03",
    "environment": "planted-environment-04",
    "argument": "planted-argument-05",
    "header": "planted-header-value-06",
    "configmap": "planted-configmap-07",
    "journal token": "planted-journal-token-08",
    "journal bearer": "planted-bearer-09",
    "url": "planted-url-password-10",
    "provider": "planted-client-secret-11",
    "headers of manifests": "planted-manifest-header-12",
    "hash": "plantedbcrypthash13plantedbcrypthash13",
    "key": "plantedprivatekey14",
    "termination message": "planted-termination-15",
    "annotation": "planted-annotation-16",
    "probe": "planted-probe-17",
    "known in the log": "planted-known-18",
    "token of the node": "planted-node-token-19",
    "quoted in an event": 'planted "quoted\\value" /20',
    "key of a cloud": "planted-access-key-21",
}
"""A secret of each kind, where it is put."""

HARMLESS = (
    "harmless-label",
    "flows changed",
    "harmless-node",
    "node-7.example",
    "harmless-image:1.27",
    "harmless-event",
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


MANIFEST = f"""\
apiVersion: v1
kind: Namespace
metadata: {{name: red}}
---
apiVersion: v1
kind: Secret
metadata:
  name: web
  namespace: red
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{{"data":{{"x":"{PLANTED["applied"]}"}}}}'
data:
  a: {encoded(PLANTED["secret"])}
  b: {encoded(PLANTED["known in the log"])}
  q: {encoded(PLANTED["quoted in an event"])}
stringData: {{c: {PLANTED["string"]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings, namespace: red}}
data: {{file: {PLANTED["configmap"]}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: red
  labels: {{app: harmless-label}}
  annotations: {{example.com/x: {PLANTED["annotation"]}}}
spec:
  nodeName: harmless-node
  containers:
  - name: web
    image: harmless-image:1.27
    args: [{PLANTED["argument"]}]
    env: [{{name: X, value: {PLANTED["environment"]}}}]
    livenessProbe: {{exec: {{command: [{PLANTED["probe"]}]}}}}
    readinessProbe: {{httpGet: {{port: 80, httpHeaders: [{{name: X, value: {PLANTED["header"]}}}]}}}}
---
apiVersion: v1
kind: Event
metadata: {{name: e, namespace: red}}
involvedObject: {{kind: Pod, name: web, namespace: red}}
reason: harmless-event
message: 'pull from https://bob:{PLANTED["url"]}@registry.example failed'
---
apiVersion: v1
kind: Event
metadata: {{name: quoted, namespace: red}}
involvedObject: {{kind: Pod, name: web, namespace: red}}
reason: Unhealthy
message: {json.dumps("the probe printed " + PLANTED["quoted in an event"])}
"""
JOURNAL = f"""\
level=info msg="flows changed" added=3 peer=node-7.example
level=warning msg="login failed" access_token={PLANTED["journal token"]}
Authorization: Bearer {PLANTED["journal bearer"]}
bob:$2y$10${PLANTED["hash"]}
Environment=AWS_SECRET_ACCESS_KEY={PLANTED["key of a cloud"]}
GET /?q={quote(PLANTED["quoted in an event"])}
a program printed {PLANTED["known in the log"]}, and {encoded("x" + PLANTED["known in the log"])}
mail: {encoded(f"password={PLANTED['url']} it is")}
-----BEGIN EC PRIVATE KEY-----
{PLANTED["key"]}
-----END EC PRIVATE KEY-----
"""
MASTER_FILE = f"""\
# clientSecret {PLANTED["provider"]}
plugin: ovs-multitenant
identityProviders:
- {{name: harmless-node, provider: {{kind: X, clientSecret: {PLANTED["provider"]}}}}}
"""
AGENT_FILE = f"nodeName: harmless-node\nmanifestUrlHeaders: {{X-Any: {PLANTED['headers of manifests']}}}\n"


CONTAINER = {"name": "web", "image": "i", "imageID": "", "ready": False, "restartCount": 0}


async def patch_status(server: ApiServer, path: str, patch: object) -> None:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        await client.request("PATCH", path, msgspec.json.encode(patch), "application/merge-patch+json")


@pytest.fixture(scope="module")
def archive(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield an archive of a host on which every program prints the same journal."""
    root = tmp_path_factory.mktemp("host")
    client = SyncClient(server.kubeconfig)
    client.apply(MANIFEST)
    terminated = {"exitCode": 3, "message": PLANTED["termination message"]}
    waiting = {"containerStatuses": [{**CONTAINER, "state": {"terminated": terminated}}]}
    asyncio.run(patch_status(server, "/api/v1/namespaces/red/pods/web/status", {"status": waiting}))
    programs = root / "bin"
    programs.mkdir()
    (root / "journal").write_text(JOURNAL)
    for name in ("journalctl", "systemctl", "docker", "ip", "ss", "nft", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"):
        (programs / name).write_text(f"#!/bin/sh\ncat {root}/journal\n")
        (programs / name).chmod(0o755)
    (root / "master.yaml").write_text(MASTER_FILE)
    (root / "node-agent.yaml").write_text(AGENT_FILE)
    text = Path(server.kubeconfig).read_text()
    (root / "node.kubeconfig").write_text(
        text.replace("  user:\n", f"  user:\n    token: {PLANTED['token of the node']}\n")
    )
    host = Host(
        MasterSettings(admin_kubeconfig=str(server.kubeconfig), state_dir=str(root)),
        SdnSettings(kubeconfig=str(root / "node.kubeconfig"), health_address="127.0.0.1:1"),
        AgentSettings(kubeconfig=str(root / "node.kubeconfig"), health_address="127.0.0.1:1"),
        tuple(Configuration(daemon, "x") for daemon in ("podlane-master", "podlane-sdn", "podlane-node-agent")),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield collected(host, root)


def collected(host: Host, root: Path) -> Path:
    async def collect() -> None:
        known = await collecting.known_secrets(host)
        with Archive(root / "bundle.tar.gz", "bundle", known.values) as archive:
            await collecting.collect(host, root, archive, lambda _: None)

    asyncio.run(collect())
    return root / "bundle.tar.gz"


def members(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        read = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in read.items() if file is not None}


def forms(text: str) -> set[str]:
    """Return a text as it may be found: alone, in JSON and URLs, and in base64 beside other bytes."""
    found = {text, text[::-1], text.encode().hex(), json.dumps(text)[1:-1], quote(text), quote(text, safe="")}
    for offset in range(3):
        begin, end = -(-offset * 8 // 6), (offset + len(text)) * 8 // 6
        found.add(base64.b64encode(bytes(offset) + text.encode()).decode()[begin:end])
    return found


@pytest.mark.parametrize("place", PLANTED)
def test_secret_is_not_in_the_archive(archive: Path, place: str) -> None:
    for name, text in members(archive).items():
        assert not {form for form in forms(PLANTED[place]) if form in text}, name


def test_many_and_long_secrets_of_a_project_do_not_hide_those_of_others(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(MasterSettings(admin_kubeconfig=str(server.kubeconfig)), None, None)
    for name, value in {"MAX_OBJECTS": 1, "MAX_LISTED": 1, "PAGE": 1, "MAX_VALUE": 40}.items():
        monkeypatch.setattr(collecting, name, value)
    client = SyncClient(server.kubeconfig)
    client.apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: aaa}\n---\n"
        f"apiVersion: v1\nkind: Secret\nmetadata: {{name: long, namespace: aaa}}\nstringData: {{a: {'x' * 41}}}\n---\n"
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: blue}\n---\n"
        "apiVersion: v1\nkind: Secret\nmetadata: {name: own, namespace: blue}\nstringData: {a: planted-value-of-blue}\n"
    )
    known = asyncio.run(collecting.known_secrets(host))
    assert b"planted-value-of-blue" in known.values
    assert "values of Secrets are too many or too long" in known.missing
    monkeypatch.setattr(collecting, "MAX_SECRETS", 1)
    assert "after 1 Secrets no more were read" in asyncio.run(collecting.known_secrets(host)).missing


def test_private_keys_of_the_cluster_are_not_in_the_archive(archive: Path, server: ApiServer) -> None:
    whole = "".join(members(archive).values())
    assert "PRIVATE KEY" not in whole
    words = [line.split()[1] for line in Path(server.kubeconfig).read_text().splitlines() if "client-key-data" in line]
    assert words
    assert not any(word[60:100] in whole for word in words)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_content_beside_secrets_is_in_the_archive(archive: Path, text: str) -> None:
    assert any(text in content for content in members(archive).values())


def test_archive_has_what_helps(archive: Path) -> None:
    found = members(archive)
    names = {name.removeprefix("bundle/") for name in found}
    assert names >= {
        "versions.txt", "doctor.txt", "doctor.json", "notes.txt", "settings/master.yaml", "settings/node-agent.yaml",
        "journal/podlane-master.txt", "host/nft.txt", "ovs/flows.txt", "docker/info.txt", "metrics/podlane-master.txt",
        "cluster/nodes.json", "cluster/pods.json", "cluster/events.json", "cluster/netnamespaces.json",
        "cluster/names.json",
    }  # fmt: skip
    assert "clientSecret: REDACTED" in found["bundle/settings/master.yaml"]
    assert '"red/web"' in found["bundle/cluster/names.json"]
    assert '"exitCode": 3' in found["bundle/cluster/pods.json"]
    assert "apiserver_" in found["bundle/metrics/podlane-master.txt"]
    assert "settings/sdn.yaml" not in names
    assert "sdn.yaml: No such file" in found["bundle/notes.txt"]


def test_archive_is_readable_by_its_owner_only(archive: Path) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as tar:
        assert {member.mode for member in tar.getmembers()} == {0o600}


def test_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="a new file is accepted"), Archive(tmp_path / "mine", "x", ()):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_archive_of_a_failure_is_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Archive(tmp_path / "new", "x", ()):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_members_and_the_whole_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.bundle.archive.MAX_TOTAL", MAX_MEMBER)
    with Archive(tmp_path / "new", "x", ()) as archive:
        archive.add("long", b"old\n" + b"x y\n" * (MAX_MEMBER // 2) + b"newest")
        archive.add("short", b"12345678901")
    found = members(tmp_path / "new")
    assert len(found["x/long"]) <= MAX_MEMBER
    assert found["x/long"].endswith("newest")
    assert "x/short" not in found
    assert found["x/notes.txt"].splitlines() == ["long: only the end", "short: left out, the archive is full"]


def test_host_that_is_no_node_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--config", str(tmp_path), "-o", str(tmp_path / "x")]) == 1
    assert "this host is no node and no master" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
