"""Sessions of every kubectl with pods of our node through kube-apiserver, and direct use of the node API."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubelet import KUBELET
from tests.conformance.kubernetes_master import AGENT_PORT, NODE_IP
from tests.conformance.mixed_nodes import KUBELET_IP, StockPair
from tests.testbed.namespaces import inside
from tests.testbed.node.single_node import NODE
from tests.testbed.streaming.kubectl_sessions import (
    KUBECTL_VARIANTS,
    MEGABYTE,
    Kubectl,
    Terminal,
    exchange,
    run_for_all,
    serving_pod_ports,
)
from tests.testbed.wait import wait_until

LACKING = missing((*CONTROL_PLANE, "kubelet", "agnhost", "nonewprivs"))
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

PODS = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: talker}
  spec:
    nodeName: node-1
    terminationGracePeriodSeconds: 0
    containers: [{name: main, image: "busybox:1.29", command: [sleep, "100000"]}]
- apiVersion: v1
  kind: Pod
  metadata: {name: listener}
  spec:
    nodeName: node-1
    terminationGracePeriodSeconds: 0
    containers:
    - name: main
      image: busybox:1.29
      stdin: true
      command: [sh, -c, "while read line; do echo got $line; done"]
- apiVersion: v1
  kind: Pod
  metadata: {name: theirs}
  spec:
    nodeName: node-2
    terminationGracePeriodSeconds: 0
    containers: [{name: main, image: "busybox:1.29", command: [sleep, "100000"]}]
"""
TELLER = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node-1
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.29
    command: [sh, -c, "echo first; until test -e /go; do sleep 0.1; done; echo last"]
"""
ECHO, GREETER = 7000, 7001


class Within(Kubectl):
    """One of the programs, in the network of the node."""

    def __init__(self, node: StockPair, program: str, websockets: str, home: Path) -> None:
        self.command = (*node.command_prefix, program, f"--kubeconfig={node.root}/admin", "--namespace=default")
        flags = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
        self.environment = {**os.environ, "HOME": str(home), **dict.fromkeys(flags, websockets)}
        self.program = program

    def __str__(self) -> str:
        return f"{self.program} {self.environment['KUBECTL_REMOTE_COMMAND_WEBSOCKETS']}"


@pytest.fixture(scope="module")
def node() -> Iterator[StockPair]:
    with StockPair() as pair:
        pair.agent()
        pair.kubelet()
        account = ("get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
        wait_until(lambda: bool(pair.kubectl(*account)), "an account")
        pair.kubectl("apply", "-f", "-", stdin=PODS)
        for pod in ("talker", "listener", "theirs"):
            wait_until(partial(pair.is_ready, pod), f"{pod} is ready", 120.0)
        yield pair


@pytest.fixture
def everyone(node: StockPair, tmp_path: Path) -> list[Kubectl]:
    return [Within(node, program, websockets, tmp_path) for program, websockets in KUBECTL_VARIANTS]


def test_exec_passes_stdin_and_returns_exit_codes(everyone: list[Kubectl]) -> None:
    run_for_all(everyone, _programs)


def _programs(kubectl: Kubectl) -> None:
    data = MEGABYTE * 8
    digest = kubectl.run("exec", "-i", "talker", "--", "sha256sum", stdin=data).split()[0].decode()
    assert digest == hashlib.sha256(data).hexdigest()
    assert kubectl.run("exec", "-i", "talker", "--", "cat", stdin=data) == data
    assert kubectl.run("exec", "talker", "--", "echo", "a" * 50_000) == b"a" * 50_000 + b"\n"
    words = [*kubectl.command, "exec", "talker", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]
    done = subprocess.run(words, env=kubectl.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr == "err\ncommand terminated with exit code 7\n"


def test_exec_terminal_follows_the_size_of_the_users_terminal(everyone: list[Kubectl]) -> None:
    run_for_all(everyone, _terminal)


def _terminal(kubectl: Kubectl) -> None:
    terminal = Terminal(kubectl, "exec", "-it", "talker", "--", "sh")
    try:
        terminal.expect("# ")
        terminal.type("stty size\n")
        terminal.expect(r"\n30 100\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.type("until test $(stty size | cut -d' ' -f2) = 120; do sleep 0.1; done; stty size\n")
        terminal.expect(r"\n40 120\r\n")
        terminal.type("exit 4\n")
        assert terminal.process.wait(60) == 4
    finally:
        terminal.close()


def test_attach_connects_to_the_containers_own_program(everyone: list[Kubectl]) -> None:
    for number, kubectl in enumerate(everyone):  # One after another: all that listen hear every answer.
        words = [*kubectl.command, "attach", "-i", "listener"]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=kubectl.environment, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"line {number}\n")
                process.stdin.flush()
                while (line := process.stdout.readline()) != f"got line {number}\n":
                    assert line, f"{kubectl}: it ends before"
            finally:
                process.kill()


def test_logs_follow_runs_to_the_end_of_the_container(node: StockPair, everyone: list[Kubectl]) -> None:
    node.kubectl("apply", "-f", "-", stdin=TELLER.replace("NAME", "teller"))
    wait_until(lambda: node.is_ready("teller"), "it runs")
    words = [[*kubectl.command, "logs", "-f", "teller"] for kubectl in everyone[:3]]
    readers = [subprocess.Popen(word, env=everyone[0].environment, stdout=subprocess.PIPE, text=True) for word in words]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "first\n"
        node.kubectl("exec", "teller", "--", "touch", "/go")
        assert [reader.communicate(timeout=60)[0] for reader in readers] == ["last\n"] * len(readers)
        assert [reader.returncode for reader in readers] == [0] * len(readers)
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    node.kubectl("delete", "pod", "teller")


def test_kubectl_cp_copies_files_both_ways(everyone: list[Kubectl], tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data").write_bytes(MEGABYTE * 3)
    (tmp_path / "there" / "note").write_text("small")
    run_for_all(everyone, lambda kubectl: _copied(kubectl, tmp_path, f"copy-{everyone.index(kubectl)}"))


def _copied(kubectl: Kubectl, folder: Path, name: str) -> None:
    kubectl.run("cp", f"{folder}/there", f"default/talker:/{name}")
    kubectl.run("cp", f"default/talker:/{name}", f"{folder}/{name}")
    assert (folder / name / "data").read_bytes() == MEGABYTE * 3
    assert (folder / name / "note").read_text() == "small"


def test_port_forward_reaches_ports_of_a_pod(node: StockPair, everyone: list[Kubectl]) -> None:
    (identity,) = node.docker("ps", "-q", "--filter", "name=k8s_main_talker_").split()
    pid = node.docker("inspect", "-f", "{{.State.Pid}}", identity).strip()
    with serving_pod_ports(pid):
        run_for_all(everyone, lambda kubectl: _forwarded(kubectl, node))


def _forwarded(kubectl: Kubectl, node: StockPair) -> None:
    with kubectl.forwarding("talker", ECHO, GREETER) as ports, inside(node.namespace):
        for number in range(10):
            assert asyncio.run(exchange(ports[ECHO], f"{number} ".encode() * 5000)) == f"{number} ".encode() * 5000
        assert asyncio.run(exchange(ports[GREETER])) == b"hello\n", "the server closes first"


def raw(node: StockPair, name: str, path: str) -> str:
    """Return the response of a node's API through the API server."""
    return node.kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy{path}")


def shape(actual: Any) -> Any:
    """Return the keys of a JSON value. A list has the keys of all its elements."""
    if isinstance(actual, dict):
        return {key: shape(value) for key, value in actual.items()}
    if isinstance(actual, list):
        merged: dict[str, Any] = {}
        for element in actual:
            merged |= shape(element) if isinstance(element, dict) else {}
        return merged
    return None


def lacking(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Names that only they have."""
    for key, value in (theirs or {}).items():
        if key not in (ours or {}):
            yield f"{path}/{key}"
        else:
            yield from lacking(value, ours[key], f"{path}/{key}")


def test_node_metrics_have_kubelets_names(node: StockPair) -> None:
    wait_until(lambda: "usageNanoCores" in raw(node, KUBELET, "/stats/summary"), "the kubelet has two samples")
    mine, theirs = (json.loads(raw(node, name, "/stats/summary")) for name in (NODE, KUBELET))
    for summary in (mine, theirs):
        summary["node"]["network"] = sorted(summary["node"]["network"]["interfaces"][0])  # Here no route leads out.
    assert sorted(lacking(shape(theirs), shape(mine))) == ["/node/systemContainers/startTime"]
    for disk in (("fs",), ("runtime", "imageFs")):
        sizes = [reduce(dict.__getitem__, disk, summary["node"])["capacityBytes"] for summary in (mine, theirs)]
        assert sizes[0] == sizes[1]
    assert mine["node"]["fs"]["usedBytes"] == pytest.approx(theirs["node"]["fs"]["usedBytes"], rel=0.1)
    pods = {pod["podRef"]["name"]: pod for pod in mine["pods"]}
    assert {"talker", "listener"} <= set(pods)
    assert pods["talker"]["memory"]["workingSetBytes"] > 0
    names = re.compile(r"^[a-z_]+", re.MULTILINE)
    mine_names, their_names = (set(names.findall(raw(node, name, "/metrics/resource"))) for name in (NODE, KUBELET))
    assert their_names - mine_names == set()


# --- who asks the node itself -----------------------------------------------------------------------------------------


def query_node_api(node: StockPair, address: str, method: str, path: str, token: str = "") -> tuple[int, str]:
    """Return status code and body of a response of port 10250."""
    authorization = ("-H", f"Authorization: Bearer {token}") if token else ()
    url = f"https://{address}:{AGENT_PORT}{path}"
    command = [*node.command_prefix, "curl", "-sk", "-w", "\n%{http_code}", "-X", method, *authorization, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body.replace(KUBELET, NODE)


def test_kubelet_api_authorizes_service_accounts_by_cluster_rbac(node: StockPair) -> None:
    for name in ("reader", "runner", "nobody"):
        node.kubectl("create", "serviceaccount", name)
    node.kubectl("create", "clusterrole", "figures", "--verb=get", "--resource=nodes/stats,nodes/metrics")
    node.kubectl("create", "clusterrole", "programs", "--verb=get,create", "--resource=nodes/proxy")
    node.kubectl("create", "clusterrolebinding", "figures", "--clusterrole=figures", "--serviceaccount=default:reader")
    node.kubectl(
        "create", "clusterrolebinding", "programs", "--clusterrole=programs", "--serviceaccount=default:runner"
    )
    tokens = {name: node.kubectl("create", "token", name).strip() for name in ("reader", "runner", "nobody")}
    tokens |= {"liar": "no.such.token", "": ""}
    requests = (("GET", "/stats/summary"), ("GET", "/metrics/resource"), ("GET", "/pods"), ("GET", "/healthz"))
    runs = ("POST", "/run/default/POD/main?cmd=id")

    def table(address: str, pod: str) -> dict[tuple[str, str], tuple[int, str]]:
        actual = {}
        for name, token in tokens.items():
            for method, path in (*requests, (runs[0], runs[1].replace("POD", pod))):
                status, body = query_node_api(node, address, method, path, token)
                actual[name, path.replace(pod, "POD")] = (status, "" if status == 200 else body)
        return actual

    ours, theirs = table(NODE_IP, "talker"), table(KUBELET_IP, "theirs")
    statuses = {key: status for key, (status, _) in ours.items()}
    assert statuses == {key: status for key, (status, _) in theirs.items()}
    assert statuses["runner", runs[1]] == statuses["reader", "/stats/summary"] == 200
    assert statuses["reader", runs[1]] == statuses["nobody", "/pods"] == 403
    assert statuses["liar", "/pods"] == statuses["", "/healthz"] == 401
    assert ours["", "/pods"] == theirs["", "/pods"]
    assert ours["nobody", "/stats/summary"][1].startswith(
        "Forbidden (user=system:serviceaccount:default:nobody, verb=get, resource=nodes, subresource"
    )
