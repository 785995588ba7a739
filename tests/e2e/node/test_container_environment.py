"""The program, environment, mounts and terminal with which a container starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from node_agent.node.host_facts import read_host_info
from tests.testbed.node.images import add_image
from tests.testbed.node.inspection import (
    SANDBOX,
    container,
    container_status,
    exec_fails,
    exec_output,
    inspect_container,
    pod,
    uid_of,
    wait_running,
    wait_waiting,
)
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

SPEAKER = "podlane/speaker:1"
OBJECTS = [
    {"kind": "ConfigMap", "metadata": {"name": "first"}, "data": {"color": "red", "size": "1", "not-a.name": "taken"}},
    {"kind": "ConfigMap", "metadata": {"name": "second"}, "data": {"color": "blue"}},
    {"kind": "Secret", "metadata": {"name": "words"}, "stringData": {"word": "sesame"}},
    {"kind": "ServiceAccount", "metadata": {"name": "robot"}},
]


def env(name: str, **source: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": source}


def field(name: str, path: str) -> dict[str, Any]:
    return env(name, fieldRef={"fieldPath": path})


def resource(name: str, path: str, divisor: str = "0", of: str = "main") -> dict[str, Any]:
    return env(name, resourceFieldRef={"resource": path, "divisor": divisor, "containerName": of})


WORDS = pod(
    "words",
    {"name": "image-alone", "image": SPEAKER},
    {"name": "args-alone", "image": SPEAKER, "args": ["a", "b"]},
    {"name": "command-alone", "image": SPEAKER, "command": ["echo"]},
    {"name": "both", "image": SPEAKER, "command": ["echo", "c"], "args": ["d"]},
    {"name": "in-its-folder", "image": SPEAKER, "command": ["pwd"]},
    {"name": "in-ours", "image": SPEAKER, "command": ["pwd"], "workingDir": "/etc"},
    {
        "name": "expanded",
        "image": SPEAKER,
        "command": ["echo", "$(A)", "$$(A)", "$(NONE)", "$(A", "$(FROM_IMAGE)", "$(C)"],
        "args": ["$(E)"],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "C", "value": "$(A)$(D)$$(A)"},
            {"name": "D", "value": "later"},
            {"name": "E", "value": "$(C)"},
        ],
    },
    restartPolicy="Never",
)
SAID = {
    "image-alone": "entry cmd",
    "args-alone": "entry a b",
    "command-alone": "",
    "both": "c d",
    "in-its-folder": "/tmp",
    "in-ours": "/etc",
    "expanded": "1 $(A) $(NONE) $(A $(FROM_IMAGE) 1$(D)$(A) 1$(D)$(A)",
}
ABOUT = pod(
    "about",
    container(
        resources={"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}},
        envFrom=[
            {"configMapRef": {"name": "first"}},
            {"prefix": "MY_", "secretRef": {"name": "words"}},
            {"configMapRef": {"name": "second"}},
            {"configMapRef": {"name": "none", "optional": True}},
        ],
        env=[
            {"name": "size", "value": "from env"},
            {"name": "USES", "value": "$(MY_word) $(color) $(size)"},
            {"name": "TWICE", "value": "first"},
            {"name": "TWICE", "value": "second"},
            field("NAME", "metadata.name"),
            field("SPACE", "metadata.namespace"),
            field("UID_", "metadata.uid"),
            field("TIER", "metadata.labels['tier']"),
            field("NOTE", "metadata.annotations['example.com/note']"),
            field("NODE", "spec.nodeName"),
            field("ACCOUNT", "spec.serviceAccountName"),
            field("HOST", "status.hostIP"),
            field("HOSTS", "status.hostIPs"),
            resource("CORES", "limits.cpu"),
            resource("MILLI", "requests.cpu", "1m"),
            resource("MIB", "limits.memory", "1Mi"),
            resource("OTHERS_CORES", "limits.cpu", of="side"),
            resource("OTHERS_BYTES", "limits.memory", of="side"),
            env("WORD", secretKeyRef={"name": "words", "key": "word"}),
            env("COLOR", configMapKeyRef={"name": "first", "key": "color"}),
            env("NO_KEY", configMapKeyRef={"name": "first", "key": "none", "optional": True}),
            env("NO_OBJECT", secretKeyRef={"name": "none", "key": "none", "optional": True}),
        ],
    ),
    container("side"),
    meta={"labels": {"tier": "front"}, "annotations": {"example.com/note": "hello"}},
    serviceAccountName="robot",
)
OF_THE_HOST = pod(
    "of-the-host", container(env=[field("IP", "status.podIP"), field("IPS", "status.podIPs")]), hostNetwork=True
)
LACKING = (
    pod("no-object", container(env=[env("A", configMapKeyRef={"name": "late", "key": "a"})])),
    pod("no-key", container(env=[env("A", secretKeyRef={"name": "words", "key": "none"})])),
    pod("no-whole", container(envFrom=[{"secretRef": {"name": "late"}}])),
)
MOUNTS = pod(
    "mounts",
    container(
        volumeMounts=[
            {"name": "v", "mountPath": "/write"},
            {"name": "v", "mountPath": "/read", "readOnly": True},
            {"name": "v", "mountPath": "/deep", "readOnly": True, "recursiveReadOnly": "IfPossible"},
        ]
    ),
    container("side", image=SPEAKER),
    shareProcessNamespace=True,
    volumes=[{"name": "v", "emptyDir": {}}],
)
SPEAKING = pod(
    "speaking",
    container(command=["cat"], stdin=True, stdinOnce=True),
    container("deaf"),
    container("terminal", tty=True, stdin=True),
    restartPolicy="Never",
)


@pytest.fixture(scope="module")
def node() -> Iterator[SingleNode]:
    with SingleNode() as running:
        lines = ('ENTRYPOINT ["echo", "entry"]', 'CMD ["cmd"]', "WORKDIR /tmp", "ENV FROM_IMAGE=yes", "VOLUME /volume")
        add_image(running, SPEAKER, *lines)
        running.agent()
        objects = "".join(f"---\n{json.dumps({'apiVersion': 'v1'} | document)}\n" for document in OBJECTS)
        pods = (WORDS, ABOUT, OF_THE_HOST, *LACKING, MOUNTS, SPEAKING)
        running.kubectl("apply", "-f", "-", stdin=objects + "".join(pods))
        yield running


def test_container_runs_with_its_command_arguments_and_working_directory(node: SingleNode) -> None:
    wait_until(lambda: node.status("words").get("phase") == "Succeeded", "all have spoken")
    actual = {name: node.docker("logs", inspect_container(node, "words", name)["Id"]).strip() for name in SAID}
    assert actual == SAID
    assert not inspect_container(node, "words", SANDBOX)["State"]["Running"], "the sandbox ends, and the logs stay"


def test_container_is_replaced_only_when_its_image_changes(node: SingleNode) -> None:
    wait_running(node, "about", container="side")
    changes = [
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 3600},
        {"op": "replace", "path": "/spec/containers/1/image", "value": "podlane/toolbox:latest"},
    ]
    node.kubectl("patch", "pod", "about", "--type=json", "-p", json.dumps(changes))
    wait_until(lambda: container_status(node, "about", "side").get("restartCount") == 1, "the other image is started")
    wait_running(node, "about", container="side")
    assert container_status(node, "about")["restartCount"] == 0


def variables(node: SingleNode, name: str) -> dict[str, str]:
    wait_running(node, name)
    return dict(line.split("=", 1) for line in inspect_container(node, name)["Config"]["Env"])


def test_environment_is_taken_from_objects_fields_and_resources(node: SingleNode) -> None:
    actual = variables(node, "about")
    assert (
        actual.items()
        >= {
            "color": "blue",
            "size": "from env",
            "not-a.name": "taken",
            "MY_word": "sesame",
            "USES": "sesame blue from env",
            "TWICE": "second",
            "NAME": "about",
            "SPACE": "default",
            "UID_": uid_of(node, "about"),
            "TIER": "front",
            "NOTE": "hello",
            "NODE": NODE,
            "ACCOUNT": "robot",
            "HOST": "10.245.26.3",
            "HOSTS": "10.245.26.3",
            "CORES": "2",
            "MILLI": "250",
            "MIB": "64",
            "WORD": "sesame",
            "COLOR": "red",
        }.items()
    )
    assert not actual.keys() & {"NO_KEY", "NO_OBJECT"}
    assert exec_output(node, "about", "sh", "-c", "echo $USES").strip() == "sesame blue from env"
    of_host = read_host_info(node.state).allocatable
    assert (actual["OTHERS_CORES"], actual["OTHERS_BYTES"]) == (of_host["cpu"], of_host["memory"])
    assert int(actual["OTHERS_CORES"]) == os.cpu_count()
    of_host_pod = variables(node, "of-the-host")
    assert (of_host_pod["IP"], of_host_pod["IPS"]) == ("10.245.26.3", "10.245.26.3")


SERVICES = [
    {
        "metadata": {"name": "web-ui", "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]},
    },
    {
        "metadata": {"name": "no-address", "namespace": "default"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
    },
    {"metadata": {"name": "theirs", "namespace": "kube-node-lease"}, "spec": {"ports": [{"port": 80}]}},
    {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"ports": [{"name": "https", "port": 443}]}},
]


def test_containers_have_environment_variables_of_services(node: SingleNode) -> None:
    services = "".join(
        f"---\n{json.dumps({'apiVersion': 'v1', 'kind': 'Service'} | service)}\n" for service in SERVICES
    )
    node.kubectl("apply", "-f", "-", stdin=services)
    known = {"name": "WEB_UI_PORT", "value": "declared"}
    uses = {"name": "USES", "value": "$(WEB_UI_SERVICE_PORT_DNS)"}
    pods = pod("linked", container(env=[uses, known])) + pod("unlinked", enableServiceLinks=False)
    node.kubectl("apply", "-f", "-", stdin=pods)
    address = node.kubectl("get", "service", "web-ui", "-o", "jsonpath={.spec.clusterIP}")
    actual = variables(node, "linked")
    assert (
        actual.items()
        >= {
            "WEB_UI_SERVICE_HOST": address,
            "WEB_UI_SERVICE_PORT": "80",
            "WEB_UI_SERVICE_PORT_HTTP": "80",
            "WEB_UI_SERVICE_PORT_DNS": "53",
            "WEB_UI_PORT": "declared",
            "WEB_UI_PORT_80_TCP": f"tcp://{address}:80",
            "WEB_UI_PORT_80_TCP_PROTO": "tcp",
            "WEB_UI_PORT_80_TCP_PORT": "80",
            "WEB_UI_PORT_80_TCP_ADDR": address,
            "WEB_UI_PORT_53_UDP": f"udp://{address}:53",
            "USES": "53",
            "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        }.items()
    )
    assert not [name for name in actual if name.startswith(("THEIRS_", "NO_ADDRESS_"))]
    unlinked = variables(node, "unlinked")
    assert "KUBERNETES_SERVICE_HOST" in unlinked
    assert "WEB_UI_SERVICE_HOST" not in unlinked


def test_container_waits_for_missing_environment_sources(node: SingleNode) -> None:
    assert 'configmap "late" not found' in wait_waiting(node, "no-object", "CreateContainerConfigError")
    assert 'secret "late" not found' in wait_waiting(node, "no-whole", "CreateContainerConfigError")
    why = wait_waiting(node, "no-key", "CreateContainerConfigError")
    assert "couldn't find key none in Secret default/words" in why
    node.kubectl("create", "configmap", "late", "--from-literal=a=b")
    assert variables(node, "no-object")["A"] == "b"


def test_mounts_are_read_only_when_requested(node: SingleNode) -> None:
    wait_running(node, "mounts")
    assert not exec_fails(node, "mounts", "touch", "/write/a")
    for path in ("/read", "/deep"):
        assert exec_fails(node, "mounts", "touch", f"{path}/b")
        assert not exec_fails(node, "mounts", "test", "-e", f"{path}/a")
    modes = {
        mount["Destination"]: (mount["RW"], mount["Propagation"])
        for mount in inspect_container(node, "mounts")["Mounts"]
    }
    assert [modes[path] for path in ("/write", "/read", "/deep")] == [
        (True, "rprivate"),
        (False, "rprivate"),
        (False, "rprivate"),
    ]


def test_containers_share_process_namespace_when_requested(node: SingleNode) -> None:
    wait_running(node, "mounts")
    sandbox = inspect_container(node, "mounts", SANDBOX)["Id"]
    assert inspect_container(node, "mounts")["HostConfig"]["PidMode"] == f"container:{sandbox}"
    assert "catatonit" in exec_output(node, "mounts", "ps")


def test_container_has_the_terminal_and_stdin_it_requests(node: SingleNode) -> None:
    wait_running(node, "speaking")
    requested = {name: inspect_container(node, "speaking", name)["Config"] for name in ("main", "deaf", "terminal")}
    actual = {name: [config[key] for key in ("OpenStdin", "StdinOnce", "Tty")] for name, config in requested.items()}
    assert actual == {"main": [True, True, False], "deaf": [False] * 3, "terminal": [True, False, True]}
    identity = inspect_container(node, "speaking")["Id"]
    attach = ["docker", "-H", f"unix://{node.root}/docker/docker.sock", "attach", identity]
    done = subprocess.run(attach, input="hello\n", capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "hello\n"
    wait_until(
        lambda: "terminated" in container_status(node, "speaking").get("state", {}), "its input was open only once"
    )
    assert container_status(node, "speaking")["state"]["terminated"]["reason"] == "Completed"
    ends = {
        name: exec_output(node, "speaking", "readlink", "/proc/1/fd/0", container=name).strip()
        for name in ("deaf", "terminal")
    }
    assert ends == {"deaf": "/dev/null", "terminal": "/dev/pts/0"}


def test_missing_program_is_reported_and_retried_by_restart_policy(node: SingleNode) -> None:
    broken = container(command=["/nowhere"])
    node.kubectl("apply", "-f", "-", stdin=pod("once", broken, restartPolicy="Never") + pod("again", broken))
    wait_until(lambda: node.status("once").get("phase") == "Failed", "once has failed")
    end = container_status(node, "once")["state"]["terminated"]
    assert (end["reason"], end["exitCode"], end["startedAt"]) == ("ContainerCannotRun", 127, end["finishedAt"])
    assert "/nowhere" in end["message"]
    wait_until(lambda: container_status(node, "again").get("restartCount", 0) >= 1, "again is tried again")
    assert container_status(node, "again")["lastState"]["terminated"]["reason"] == "ContainerCannotRun"


def test_image_volumes_are_removed_with_their_container(node: SingleNode) -> None:
    wait_running(node, "mounts")
    [volume] = [
        mount["Name"] for mount in inspect_container(node, "mounts", "side")["Mounts"] if mount["Type"] == "volume"
    ]
    assert volume in node.docker("volume", "ls", "-q")
    node.kubectl("delete", "pod", "mounts", "--timeout=30s")
    wait_until(lambda: volume not in node.docker("volume", "ls", "-q"), "the volume has gone with it")


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}, "ephemeral"),
        ({"csi": {"driver": "example.com"}}, "csi"),
        ({"image": {"reference": "podlane/toolbox"}}, "image"),
    ],
)
def test_unsupported_volume_types_are_rejected(node: SingleNode, source: dict[str, Any], path: str) -> None:
    with pytest.raises(AssertionError, match=rf"spec.volumes\[0\].{path}"):
        node.kubectl("apply", "-f", "-", stdin=pod("wrong", volumes=[{"name": "v"} | source]))
