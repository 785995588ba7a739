"""What a program in an editor's pod cannot do to its node, and what it can; an administrator's pod is the control."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace

PROJECT = "confined"
EDITOR = ("--as=ann", "--as-group=system:authenticated")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "ordinary", "namespace": PROJECT},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "main",
                "image": "podlane/toolbox",
                "imagePullPolicy": "Never",
                "command": ["tail", "-f", "/dev/null"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    },
}
ATTEMPTS = {
    "mount": "mount -t tmpfs none /mnt 2>/dev/null || mount -t tmpfs none /tmp",
    "device of a disk": "mknod /data/disk b 8 0",
    "file of another user": "touch /data/mine && chown 12345 /data/mine",
    "host name": "hostname other",
    "network interface": "ip link set lo mtu 1400",
    "mount namespace": "unshare -m true",
    "root directory": "chroot / true",
    "other user": "touch /root/file",
}


@pytest.fixture(scope="module")
def project(cluster: Cluster) -> Iterator[str]:
    cluster.apply(namespace(PROJECT))
    cluster.kubectl("create", "rolebinding", "ann", "-n", PROJECT, "--clusterrole=edit", "--user=ann")
    cluster.kubectl(*EDITOR, "create", "-f", "-", stdin=json.dumps(POD))
    (container,) = POD["spec"]["containers"]  # type: ignore[index]
    powers = {"capabilities": {"add": ["SYS_ADMIN", "NET_ADMIN", "MKNOD"]}, "seccompProfile": {"type": "Unconfined"}}
    mighty = {
        **POD,
        "metadata": {"name": "mighty", "namespace": PROJECT},
        "spec": {**POD["spec"], "containers": [{**container, "securityContext": powers}]},  # type: ignore[dict-item]
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(mighty))
    cluster.wait_running(PROJECT, "ordinary", "mighty")
    yield PROJECT
    cluster.kubectl("delete", "namespace", PROJECT, "--timeout=60s")


def succeeds(cluster: Cluster, pod: str, command: str) -> bool:
    words = ("exec", "-n", PROJECT, pod, "--", "sh", "-c", command)
    return cluster.kubectl(*words, check=False).returncode == 0


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_ordinary_pod_cannot_and_mighty_pod_can(cluster: Cluster, project: str, attempt: str) -> None:
    assert succeeds(cluster, "mighty", ATTEMPTS[attempt])
    assert not succeeds(cluster, "ordinary", ATTEMPTS[attempt])


def test_ordinary_pod_runs_without_privileges_under_the_ids_of_its_project(cluster: Cluster, project: str) -> None:
    annotations = json.loads(cluster.kubectl("get", "namespace", project, "-o", "json").stdout)["metadata"][
        "annotations"
    ]
    first = annotations["openshift.io/sa.scc.uid-range"].partition("/")[0]
    text = cluster.execute(project, "ordinary", "cat", "/proc/self/status").stdout
    status = {key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())}
    assert status["Uid"] == [first] * 4
    assert first in status["Groups"]
    assert int(status["CapEff"][0], 16) == int(status["CapPrm"][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])


def test_ordinary_pod_writes_its_volume_reads_its_token_and_listens_on_port_80(cluster: Cluster, project: str) -> None:
    assert succeeds(cluster, "ordinary", 'echo x > /data/file && test "$(stat -c %g /data/file)" != 0')
    assert succeeds(cluster, "ordinary", "test -s /var/run/secrets/kubernetes.io/serviceaccount/token")
    assert succeeds(cluster, "ordinary", "httpd -p 80 -h /data && curl -sf localhost:80/file")


def test_editor_executes_in_the_ordinary_pod_only(cluster: Cluster, project: str) -> None:
    def execute(pod: str) -> str:
        done = cluster.kubectl(*EDITOR, "exec", "-n", project, pod, "--", "id", "-u", check=False)
        return done.stdout + done.stderr

    assert execute("ordinary").strip().isdecimal()
    assert "exec operation is not allowed because the pod's security context exceeds your permissions" in execute(
        "mighty"
    )
