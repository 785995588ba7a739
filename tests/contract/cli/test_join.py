"""`podlane join` against a real master, on a host whose files are real and whose daemons are a thread."""

from __future__ import annotations

import asyncio
import datetime
import io
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from api.client.bootstrap import create_bootstrap_token
from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.pki import keys
from api.pki.pem import Subject
from cli.__main__ import main
from cli.join.command import JoinError, Request, join
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.node.joining_host import JoiningHost, KilledError
from tests.testbed.wait import wait_until

HOUR = datetime.timedelta(hours=1)
NODES = "/api/v1/nodes"
FIRST = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/podlane:first-certificates"

MakeHost = Callable[..., JoiningHost]


def token_of(server: ApiServer, lifetime: datetime.timedelta = HOUR) -> str:
    async def create() -> str:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            return await create_bootstrap_token(client, lifetime)

    return asyncio.run(create())


@pytest.fixture
def request_of(server: ApiServer) -> Callable[[str], Request]:
    hashes = tuple(keys.certificates_by_key_hash(Kubeconfig.load(server.kubeconfig).ca))
    return lambda name: Request(server.url, token_of(server), hashes, name, timeout=30.0)


Ask = Callable[[str], Request]


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[MakeHost]:
    hosts: list[JoiningHost] = []

    def make(**values: str) -> JoiningHost:
        hosts.append(JoiningHost(tmp_path / f"host-{len(hosts)}", **values))
        return hosts[-1]

    yield make
    for host in hosts:
        host.stop()


def approve_request(server: ApiServer, name: str) -> None:
    subprocess.run(["kubectl", f"--kubeconfig={server.kubeconfig}", "certificate", "approve", name], check=True)


def node(server: ApiServer, name: str) -> dict[str, object]:
    return SyncClient(server.kubeconfig).get(f"{NODES}/{name}")


def standard_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_printed_line_joins_a_host(
    server: ApiServer, make_host: MakeHost, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["node", "token", f"--kubeconfig={server.kubeconfig}"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["podlane", "join"]
    host = make_host()
    monkeypatch.setattr("cli.join.command.Host", lambda: host)
    option = words.index("--token") + 1
    token, words[option] = words[option], "-"
    standard_input(monkeypatch, f"{token[:-1]}\n")
    assert main([*words[1:], "--timeout=15"]) == 2
    assert "--token is not of the form ID.SECRET" in capsys.readouterr().err
    standard_input(monkeypatch, f"{token}\nmore\n")
    assert main([*words[1:], "--timeout=15"]) == 0
    assert "node debian is Ready" in capsys.readouterr().out
    words[option] = token
    assert node(server, "debian")
    for name in ("sdn", "node-agent"):
        text = host.read(f"/etc/podlane/{name}.yaml")
        found = yaml.safe_load(text)
        expected = ("debian", host.address, "/etc/podlane/node.kubeconfig")
        assert (found["nodeName"], found["nodeIp"], found["kubeconfig"]) == expected
        assert "# Made on the master by" in text
    assert not host.path("/etc/podlane/bootstrap.kubeconfig").exists()
    assert not host.path("/var/lib/podlane/join.json").exists()
    assert host.images == {"podlane/pause"}
    host.stop()
    changes = list(host.changes)
    assert main([*words[1:], "--timeout=15"]) == 0
    assert "this host is the node debian" in capsys.readouterr().out
    assert host.changes == changes
    assert main([*words[1:], "--name=other"]) == 1
    assert "this host is the node debian of this cluster; other was asked for" in capsys.readouterr().err


def test_join_that_is_killed_at_any_step_is_continued(server: ApiServer, make_host: MakeHost, request_of: Ask) -> None:
    host = make_host()
    join(request_of("whole"), host, print)
    steps = len(host.changes)
    assert steps == 9
    for step in (1, 4, 6, 7, 9):  # the record, a file, the sdn daemon, the agent, the removal of the record
        host, name = make_host(), f"killed-{step}"
        before = host.snapshot()
        host.killed_at = step
        with pytest.raises(KilledError):
            join(request_of(name), host, print)
        host.stop()
        host.killed_at = 0
        join(request_of(name), host, print)
        assert node(server, name)
        assert not host.path("/var/lib/podlane/join.json").exists()
        assert host.snapshot() != before


@pytest.mark.parametrize("step", [2, 7])
def test_join_that_fails_after_one_that_was_killed_restores_the_host(
    make_host: MakeHost, request_of: Ask, step: int
) -> None:
    host = make_host()
    before = host.snapshot()
    host.killed_at = step
    with pytest.raises(KilledError):
        join(request_of(f"fails-{step}"), host, print)
    host.broken["podlane-node-agent.service"] = "exit code 1"
    with pytest.raises(JoinError, match=r"exit code 1; the join was undone$"):
        join(request_of(f"fails-{step}"), host, print)
    assert host.snapshot() == before
    host.broken.clear()
    join(request_of(f"fails-{step}"), host, print)
    assert host.snapshot() != before


def test_interrupted_join_to_another_name_is_undone_first(make_host: MakeHost, request_of: Ask) -> None:
    host = make_host()
    host.killed_at = 6
    with pytest.raises(KilledError):
        join(request_of("before"), host, print)
    said: list[str] = []
    join(request_of("after"), host, said.append)
    assert any("undoing the join of before" in line for line in said)
    assert yaml.safe_load(host.read("/etc/podlane/sdn.yaml"))["nodeName"] == "after"


def test_node_that_does_not_get_ready_is_undone_and_says_what_the_master_keeps(
    make_host: MakeHost, request_of: Ask
) -> None:
    host = make_host()
    host.reports_ready = False
    before = host.snapshot()
    expected = "not Ready within 3 s: the node is not Ready: no network yet.*the join was undone, but:\n"
    with pytest.raises(JoinError, match=f"(?s){expected}.*podlane node remove slow"):
        join(replace(request_of("slow"), timeout=3.0), host, print)
    host.stop()
    host.path("/state").exists()
    files, running, images = host.snapshot()
    assert (running, images) == before[1:]
    assert isinstance(files, dict)
    assert {name: value for name, value in files.items() if not name.startswith("state/")} == before[0]


def test_join_says_all_problems_at_once_and_changes_nothing(
    server: ApiServer, make_host: MakeHost, request_of: Ask
) -> None:
    host = make_host(address="10.129.0.5")
    host.problems.append("there is no unit podlane-sdn.service")
    before = host.snapshot()
    with pytest.raises(JoinError) as raised:
        join(request_of("Not_Valid"), host, print)
    text = str(raised.value)
    assert text.startswith("4 problems, nothing was changed\n")
    for part in (
        "podlane-sdn.service",
        "'Not_Valid' (--name)",
        "lies in the cluster network 10.128.0.0/14",
        "renumber",
    ):
        assert part in text
    assert host.snapshot() == before
    assert host.changes == []


def test_server_of_another_authority_gets_no_token(make_host: MakeHost, request_of: Ask) -> None:
    right = request_of("victim")
    host = make_host()
    with pytest.raises(JoinError, match=r"has the authority sha256:.* is accepted"):
        join(replace(right, hashes=(f"sha256:{'0' * 64}",)), host, print)
    assert host.changes == []
    join(replace(right, hashes=(f"sha256:{'0' * 64}", *right.hashes)), host, print)


@pytest.mark.parametrize("lifetime", [-HOUR, None])
def test_expired_or_wrong_token_is_refused(
    server: ApiServer, make_host: MakeHost, request_of: Ask, lifetime: datetime.timedelta | None
) -> None:
    token = token_of(server, lifetime) if lifetime else "abcdef.0123456789abcdef"
    host = make_host()
    with pytest.raises(JoinError, match=r"the token is not accepted: .*`podlane node token` on the master"):
        join(replace(request_of("late"), token=token), host, print)
    assert host.changes == []


def test_name_of_a_running_node_or_of_a_node_elsewhere_is_refused(make_host: MakeHost, request_of: Ask) -> None:
    join(request_of("taken"), make_host(), print)
    same, other = make_host(), make_host(address="10.245.7.8")
    with pytest.raises(JoinError, match="there is a node taken with this address, which sends heartbeats"):
        join(request_of("taken"), same, print)
    with pytest.raises(JoinError, match=r"with the address 10\.245\.7\.7; this host has 10\.245\.7\.8"):
        join(request_of("taken"), other, print)
    assert same.changes == other.changes == []


def test_identity_of_another_cluster_is_not_replaced(make_host: MakeHost, request_of: Ask) -> None:
    key = keys.generate_key()
    subject = Subject("system:node:elsewhere", ("system:nodes",))
    certificate = keys.self_signed(key, subject, datetime.datetime.now(datetime.UTC))
    foreign = Kubeconfig("https://10.9.9.9:8443", certificate, certificate, key)
    host = make_host()
    host.write("/etc/podlane/node.kubeconfig", foreign.text("x", "y"))
    before = host.snapshot()
    with pytest.raises(JoinError, match=r"the node elsewhere of another cluster, https://10\.9\.9\.9.*node reset"):
        join(request_of("here"), host, print)
    assert host.snapshot() == before


def test_join_names_the_request_that_waits_for_approval(
    server: ApiServer, make_host: MakeHost, request_of: Ask
) -> None:
    client = SyncClient(server.kubeconfig)
    binding = client.get(FIRST)
    off = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
    metadata = {"name": binding["metadata"]["name"], "annotations": off}
    client.apply(yaml.safe_dump({**binding, "metadata": metadata, "subjects": []}))
    said: list[str] = []

    def approve(line: str) -> None:
        said.append(line)
        command, _, name = line.rpartition(" ")
        if command.endswith("kubectl certificate approve"):
            approve_request(server, name)

    join(request_of("waits"), make_host(), approve)
    assert any("waiting for approval; on the master:" in line for line in said)
    wait_until(lambda: node(server, "waits"), "the node is there")
