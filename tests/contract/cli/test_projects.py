"""Projects in the arguments of `podlane`: those that do not exist, and those that have VNID 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.__main__ import main
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.wait import wait_until

MANIFEST = """\
apiVersion: v1
kind: Namespace
metadata: {name: red}
---
apiVersion: v1
kind: Namespace
metadata: {name: blue}
"""
POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"
EDITOR = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: ann, namespace: red}
subjects: [{kind: User, name: ann, apiGroup: rbac.authorization.k8s.io}]
roleRef: {kind: ClusterRole, name: edit, apiGroup: rbac.authorization.k8s.io}
"""
SCCS = "/apis/security.openshift.io/v1/securitycontextconstraints"
NET_NAMESPACES = "/apis/network.openshift.io/v1/netnamespaces"

Podlane = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"), "--plugin=ovs-multitenant")
    api_server.start()
    client = SyncClient(api_server.kubeconfig)
    client.apply(MANIFEST)
    wait_until(lambda: {"red", "blue"} <= vnids(api_server).keys(), "the projects have VNIDs")
    yield api_server
    assert api_server.stop() == 0


def vnids(server: ApiServer) -> dict[str, int]:
    items = SyncClient(server.kubeconfig).get(NET_NAMESPACES)["items"]
    return {item["netname"]: item["netid"] for item in items}


@pytest.fixture
def podlane(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Podlane:
    def run(*words: str) -> tuple[int, str]:
        code = main([*words, f"--kubeconfig={server.kubeconfig}"])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "words",
    [
        "network isolate red nope",
        "network global nope",
        "network join nope --to red",
        "network join red --to nope",
        "network services nope",
        "network services nope/web",
        "network trace nope/web 10.128.0.2",
        "network trace 10.128.0.2 nope/web",
        "network capture nope/web",
        "scc explain POD --namespace nope",
    ],
)
def test_a_project_that_does_not_exist_is_not_found(
    words: str, podlane: Podlane, server: ApiServer, tmp_path: Path
) -> None:
    before = vnids(server)
    (tmp_path / "pod.yaml").write_text(POD)
    code, error = podlane(*words.replace("POD", str(tmp_path / "pod.yaml")).split())
    assert (code, error) == (1, "podlane: there is no project 'nope'\n")
    _, error = podlane(*words.replace("POD", str(tmp_path / "pod.yaml")).replace("nope", "blue").split())
    assert "there is no project" not in error
    podlane("network", "isolate", "red", "blue")
    assert vnids(server).keys() == before.keys()


def test_a_service_that_does_not_exist_is_not_found(podlane: Podlane) -> None:
    assert podlane("network", "services", "red/web") == (1, 'podlane: services "web" not found\n')
    assert podlane("network", "services", "default/kubernetes")[1] == "podlane: no node has answered\n"


def test_scc_explain_fails_if_the_pod_is_refused(podlane: Podlane, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    assert podlane("scc", "explain", str(file), "-n", "red") == (0, "")
    file.write_text(POD.replace("image: i", "image: i, securityContext: {privileged: true}"))
    assert podlane("scc", "explain", str(file), "-n", "red")[0] == 0, "the administrator may use privileged"
    assert podlane("scc", "explain", str(file), "-n", "red", "--as", "nobody") == (1, "")


def test_scc_explain_says_of_each_scc_what_it_does_with_the_pod(
    server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client = SyncClient(server.kubeconfig)
    client.apply(EDITOR)
    file = tmp_path / "pod.yaml"
    command = ["scc", "explain", str(file), "-n", "red", f"--kubeconfig={server.kubeconfig}", "--as", "ann"]
    file.write_text(POD)
    assert main(command) == 0
    output = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in output.partition("\n\n")[0].splitlines()[1:])
    assert rows.keys() == {scc["metadata"]["name"] for scc in client.get(SCCS)["items"]}
    assert rows.pop("restricted-v2") == "chosen"
    assert set(rows.values()) == {"neither the user nor the service account of the pod may use it"}
    assert "restricted-v2 admits the pod: the user may use it. It fills in:" in output
    assert "\n  spec.securityContext.fsGroup: 1000" in output
    assert "\n  spec.containers[0].securityContext.runAsUser: 1000" in output
    assert '\n  spec.containers[0].securityContext.capabilities.drop: ["ALL"]' in output
    file.write_text(POD.replace("image: i", "image: i, securityContext: {runAsUser: 0}"))
    assert main(command) == 1
    output = capsys.readouterr().out
    assert "restricted-v2 .containers[0].runAsUser: Invalid value: 0: must be in the ranges" in " ".join(output.split())
    assert output.rstrip().endswith('the least permissive SCC that admits the pod is "anyuid"')


def test_scc_explain_says_once_that_a_pod_is_invalid(
    server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD.replace("name: c", "name: C"))
    assert main(["scc", "explain", str(file), f"--kubeconfig={server.kubeconfig}"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the pod is invalid: spec.containers[0].name: Invalid value: ")
    assert "explained-" not in line
    file.write_text(POD)
    assert main(["scc", "explain", str(file), f"--kubeconfig={server.kubeconfig}", "--as", "nobody"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith('User "nobody" cannot create')


SECRETS = "/api/v1/namespaces/kube-system/secrets"


@pytest.mark.parametrize("out", ["nowhere/x", "."])
def test_a_file_that_cannot_be_written_is_found_before_a_token_is_made(
    out: str, podlane: Podlane, server: ApiServer, tmp_path: Path
) -> None:
    def names(path: str) -> list[str]:
        return [item["metadata"]["name"] for item in SyncClient(server.kubeconfig).get(path)["items"]]

    before = names(SECRETS)
    for words in (("node", "token"), ("node", "add", "node-7")):
        code, error = podlane(*words, f"--out={tmp_path / out}")
        assert code == 1
        assert error.startswith(f"podlane: {tmp_path / out}")
        assert error.endswith("; nothing was done\n")
    assert names(SECRETS) == before
    assert podlane("node", "token", f"--out={tmp_path / 'x'}") == (0, "")
    assert len(names(SECRETS)) == len(before) + 1


def test_changes_of_vnid_0_need_yes(podlane: Podlane, server: ApiServer) -> None:
    podlane("network", "isolate", "red", "blue")
    before = vnids(server)
    assert before["kube-public"] == 0
    code, error = podlane("network", "isolate", "red", "kube-public")
    assert code == 2
    assert error == (
        "podlane: kube-public has VNID 0: its pods and those of all projects reach each other. After isolate, they "
        "reach only the pods of VNID 0, and all other pods lose what it serves; --yes does it\n"
    )
    code, error = podlane("network", "join", "kube-public", "--to", "red")
    assert code == 2
    assert "After join, they reach only the pods of red and VNID 0, and" in error
    code, error = podlane("network", "join", "red", "--to", "default")
    assert code == 2
    assert error == (
        "podlane: default has VNID 0. After join, red has VNID 0, too: its pods and those of all projects reach each "
        "other; --yes does it\n"
    )
    assert vnids(server) == before
    assert podlane("network", "global", "kube-public", "red") == (0, ""), "the words say that themselves"
    assert vnids(server) == {**before, "red": 0}
    assert podlane("network", "isolate", "red", "--yes") == (0, "")
    assert podlane("network", "join", "blue", "--to", "default", "--yes") == (0, "")
    assert podlane("network", "isolate", "kube-public", "--yes") == (0, "")
    assert (vnids(server)["blue"], vnids(server)["red"] == 0, vnids(server)["kube-public"] == 0) == (0, False, False)
    assert podlane("network", "global", "kube-public") == (0, "")
    assert podlane("network", "isolate", "blue", "--yes") == (0, "")


def test_default_stays_global_also_with_yes(podlane: Podlane, server: ApiServer) -> None:
    code, error = podlane("network", "isolate", "default", "--yes")
    assert code == 1
    assert "default stays global" in error
    assert vnids(server)["default"] == 0
