"""A node that reserves resources, reads a single manifest file and sets no CPU quota."""

from __future__ import annotations

import json

from api.meta import quantity
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: limited, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: podlane/toolbox
    command: [tail, -f, /dev/null]
    resources: {limits: {cpu: 500m, memory: 32Mi}}
"""


def test_node_reserves_resources_reads_one_manifest_file_and_sets_no_cpu_quota() -> None:
    with SingleNode() as node:
        file = node.root / "one.yaml"
        file.write_text(MANIFEST)
        node.agent(
            "--kube-reserved=cpu=100m,memory=200Mi",
            "--system-reserved=cpu=150m,memory=56Mi",
            "--cpu-cfs-quota=false",
            f"--manifest-dir={file}",
        )
        wait_until(lambda: node.node_condition("Ready") == "True", "the node")
        wait_until(lambda: node.is_ready(f"limited-{NODE}"), "the pod of the file")
        status = json.loads(node.kubectl("get", "node", NODE, "-o", "json"))["status"]
        capacity, allocatable = status["capacity"], status["allocatable"]
        assert quantity.to_milli(capacity["cpu"]) - quantity.to_milli(allocatable["cpu"]) == 250
        reserved = quantity.to_int(capacity["memory"]) - quantity.to_int(allocatable["memory"])
        assert reserved == (200 + 56 + 100) << 20
        (container,) = node.docker("ps", "-q", "--filter", "name=k8s_main_limited").split()
        (seen,) = json.loads(node.docker("inspect", container))
        assert (seen["HostConfig"]["CpuQuota"], seen["HostConfig"]["Memory"]) == (0, 32 << 20)
        file.unlink()
        wait_until(lambda: not node.docker("ps", "-q"), "the pod goes with its file")
