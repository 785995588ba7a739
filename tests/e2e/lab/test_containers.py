"""Containers of a pod as a user sees them: order, privileges and environment."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.down import CGROUPS
from lab.process import run
from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace
from tests.testbed.wait import CALL_SECONDS, wait_until


@pytest.fixture
def project(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    name = request.node.name.replace("_", "-").split("[")[0][:40].rstrip("-") + f"-{digest}"
    cluster.apply(namespace(name))
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout=60s")


def pod(name: str, project: str, spec: str) -> str:
    """Return a pod of the project; `spec` is YAML, indented by two."""
    head = f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {project}}}\nspec:\n"
    return f"{head}  terminationGracePeriodSeconds: 1\n{spec}"


def container_status(cluster: Cluster, project: str, name: str, kind: str = "containerStatuses") -> dict[str, Any]:
    """Return the status of the first container of a kind."""
    rows = cluster.status(project, name).get(kind) or [{"state": {}}]
    first: dict[str, Any] = rows[0]
    return first


def wait_reason(cluster: Cluster, project: str, name: str, reason: str) -> str:
    """Wait until the first container waits for this reason, and return the message."""

    def message() -> str | None:
        waiting = container_status(cluster, project, name)["state"].get("waiting", {})
        return str(waiting.get("message", "")) or " " if waiting.get("reason") == reason else None

    return wait_until(message, f"{name} waits with {reason}") or ""


STEPS = """\
  restartPolicy: Always
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - name: first
    image: podlane/toolbox
    command: [sh, -c, "test -e /v/tried || { touch /v/tried; exit 3; }; echo first >> /v/said"]
    volumeMounts: [{name: v, mountPath: /v}]
  - {name: beside, image: podlane/toolbox, restartPolicy: Always, command: [httpd, -f, -p, "8081", -h, /]}
  - name: second
    image: podlane/toolbox
    command: [sh, -c, "wget -qO /dev/null http://127.0.0.1:8081/etc/passwd && echo second >> /v/said"]
    volumeMounts: [{name: v, mountPath: /v}]
  containers:
  - name: main
    image: podlane/toolbox
    command: [sh, -c, "echo main >> /v/said; exec httpd -f -p 8080 -h /v"]
    volumeMounts: [{name: v, mountPath: /v}]
"""


def test_init_containers_run_in_order_before_regular_containers(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("steps", project, STEPS))
    cluster.wait_running(project, "steps")
    assert cluster.execute(project, "steps", "cat", "/v/said").stdout.split() == ["first", "second", "main"]
    first, beside, second = cluster.status(project, "steps")["initContainerStatuses"]
    assert (first["restartCount"], first["state"]["terminated"]["reason"]) == (1, "Completed")
    assert "running" in beside["state"]
    assert second["ready"]
    assert "2/2" in cluster.kubectl("-n", project, "get", "pods").stdout
    node = cluster.node_of(project, "steps")
    sandbox = cluster.docker(node, "ps", "-q", "--filter", "name=k8s_POD_steps_")
    cluster.docker(node, "kill", sandbox)
    again = ["first", "second", "main"] * 2
    wait_until(
        lambda: cluster.execute(project, "steps", "cat", "/v/said").stdout.split() == again, "init has run again"
    )


def test_sidecar_ends_when_the_pod_has_completed(cluster: Cluster, project: str) -> None:
    spec = """\
  restartPolicy: Never
  initContainers:
  - {name: beside, image: podlane/toolbox, restartPolicy: Always, command: [tail, -f, /dev/null]}
  containers: [{name: main, image: podlane/toolbox, command: [sh, -c, "exit 0"]}]
"""
    failing = (
        "  restartPolicy: Never\n  initContainers: [{name: i, image: podlane/toolbox, command: [sh, -c, exit 4]}]\n"
    )
    failing += "  containers: [{name: main, image: podlane/toolbox}]\n"
    cluster.apply(pod("work", project, spec) + pod("fails", project, failing))
    wait_until(lambda: cluster.status(project, "work").get("phase") == "Succeeded", "the work is done")
    assert "terminated" in container_status(cluster, project, "work", "initContainerStatuses")["state"]
    wait_until(lambda: cluster.status(project, "fails").get("phase") == "Failed", "init fails for good")
    assert "Init:Error" in cluster.kubectl("-n", project, "get", "pod", "fails").stdout


def test_kubectl_debug_adds_a_container_that_sees_the_target_processes(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("web", project, "  containers: [{name: main, image: podlane/toolbox, command: [httpd, -f]}]\n"))
    cluster.wait_running(project, "web")
    words = ("-n", project, "debug", "web", "--image=podlane/toolbox", "--target=main", "-c", "shell", "--attach=false")
    cluster.kubectl(*words, "--", "sh", "-c", "ps > /tmp/seen; tail -f /dev/null")
    wait_until(
        lambda: "running" in container_status(cluster, project, "web", "ephemeralContainerStatuses")["state"],
        "the shell runs",
    )
    identity = str(container_status(cluster, project, "web", "ephemeralContainerStatuses")["containerID"]).removeprefix(
        "docker://"
    )
    seen = cluster.docker(cluster.node_of(project, "web"), "exec", identity, "cat", "/tmp/seen")
    assert "httpd -f" in seen
    assert json.loads(cluster.kubectl("-n", project, "get", "pod", "web", "-o", "json").stdout)["status"]["phase"]


def test_container_runs_as_user_and_groups_of_its_security_context(cluster: Cluster, project: str) -> None:
    spec = """\
  securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000],
                    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "80"}]}
  containers:
  - name: main
    image: podlane/toolbox
    command: [tail, -f, /dev/null]
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
"""
    root = "  containers: [{name: main, image: podlane/toolbox, securityContext: {runAsNonRoot: true}}]\n"
    unsafe = "  securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}\n"
    unsafe += "  containers: [{name: main, image: podlane/toolbox}]\n"
    cluster.apply(pod("web", project, spec) + pod("root", project, root) + pod("unsafe", project, unsafe))
    cluster.wait_running(project, "web")
    output = cluster.execute(project, "web", "id").stdout
    assert "uid=1000" in output
    assert "gid=3000" in output
    assert "2000" in output
    assert "4000" in output
    assert cluster.execute(project, "web", "touch", "/x").returncode != 0
    reported = cluster.execute(project, "web", "cat", "/proc/self/status").stdout
    assert "NoNewPrivs:\t1" in reported
    port = cluster.execute(project, "web", "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start").stdout
    assert port.strip() == "80"
    assert "image will run as root" in wait_reason(cluster, project, "root", "CreateContainerConfigError")
    wait_until(lambda: cluster.status(project, "unsafe").get("reason") == "SysctlForbidden", "unsafe is rejected")


def test_privileged_container_runs_or_reports_what_the_machine_lacks(cluster: Cluster, project: str) -> None:
    spec = "  containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null], SECURED}]\n"
    secured = spec.replace("SECURED", "securityContext: {privileged: true}")
    cluster.apply(pod("mighty", project, secured))

    def runs_or_is_denied() -> bool:
        state = container_status(cluster, project, "mighty")["state"]
        lacking = "operation not permitted" in str(state.get("waiting", {}).get("message"))
        return "running" in state or lacking

    wait_until(runs_or_is_denied, "mighty runs or says why not")


def test_host_network_pod_has_the_hosts_network(cluster: Cluster, project: str) -> None:
    spec = """\
  nodeName: node-1
  hostNetwork: true
  hostPID: true
  hostIPC: true
  hostAliases: [{ip: 192.0.2.9, hostnames: [alias.example]}]
  containers: [{name: main, image: podlane/toolbox, command: [httpd, -f, -p, "8099", -h, /etc]}]
"""
    cluster.apply(pod("host", project, spec))
    cluster.wait_running(project, "host")
    node = cluster.nodes["node-1"]
    assert cluster.address(project, "host") == str(node.address)
    pid = cluster.pid(project, "host")
    for kind in ("pid", "ipc", "uts"):
        assert Path(f"/proc/{pid}/ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()
    hosts = cluster.execute(project, "host", "cat", "/etc/hosts").stdout
    assert hosts.startswith("# Kubernetes-managed hosts file (host network).")
    assert "192.0.2.9\talias.example" in hosts
    inside = ("nsenter", f"--net=/run/netns/{cluster.nodes['node-2'].namespace}")
    assert run(*inside, "curl", "-sS", "--max-time", "10", f"http://{node.address}:8099/passwd")


def test_containers_share_process_namespace_when_requested(cluster: Cluster, project: str) -> None:
    spec = """\
  shareProcessNamespace: true
  hostname: shop
  subdomain: shops
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [example.com], options: [{name: ndots, value: "2"}]}
  containers:
  - {name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}
  - {name: side, image: podlane/toolbox, command: [httpd, -f, -p, "8080"]}
"""
    cluster.apply(pod("pair", project, spec))
    cluster.wait_running(project, "pair")
    assert "httpd -f" in cluster.execute(project, "pair", "ps").stdout
    assert cluster.execute(project, "pair", "hostname").stdout.strip() == "shop"
    wanted = "nameserver 192.0.2.53\nsearch example.com\noptions ndots:2\n"
    assert cluster.execute(project, "pair", "cat", "/etc/resolv.conf").stdout == wanted
    hosts = cluster.execute(project, "pair", "cat", "/etc/hosts").stdout
    assert f"{cluster.address(project, 'pair')}\tshop.shops.{project}.svc.cluster.local\tshop" in hosts


ANSWERER = """\
import socket, sys
with socket.socket(type=socket.SOCK_DGRAM) as server:
    server.bind(("", int(sys.argv[1])))
    print("bound", flush=True)
    while True:
        server.sendto(b"the answer", server.recvfrom(100)[1])
"""


@contextmanager
def answering(pid: int, port: int) -> Iterator[None]:
    """Answer datagrams to this port in the network of a process during the block."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", ANSWERER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "bound\n"
        try:
            yield
        finally:
            server.terminate()


def test_host_port_reaches_its_pod_until_the_pod_is_gone(cluster: Cluster, project: str) -> None:
    spec = """\
  nodeName: node-1
  containers:
  - name: main
    image: podlane/toolbox
    command: [httpd, -f, -p, "8080", -h, /etc]
    ports:
    - {containerPort: 8080, hostPort: 9080}
    - {containerPort: 5300, hostPort: 9053, protocol: UDP}
    - {containerPort: 8080, hostPort: 9081, hostIP: ADDRESS}
    - {containerPort: 8080, hostPort: 9082, hostIP: 192.0.2.77}
    - {containerPort: 8080, hostPort: 9083, hostIP: 127.0.0.1}
""".replace("ADDRESS", str(cluster.nodes["node-1"].address))
    cluster.apply(pod("open", project, spec))
    cluster.wait_running(project, "open")

    def answers(*where: str, port: int = 9080, address: object = cluster.nodes["node-1"].address) -> bool:
        url = f"http://{address}:{port}/passwd"
        command = (*where, "curl", "-sS", "--max-time", "5", "-o", "/dev/null", url)
        return subprocess.run(command, capture_output=True, timeout=CALL_SECONDS, check=False).returncode == 0

    inside = {name: ("nsenter", f"--net=/run/netns/{node.namespace}") for name, node in sorted(cluster.nodes.items())}
    for where in ((), inside["node-1"], inside["node-2"]):
        wait_until(lambda where=where: answers(*where), f"the port answers {where}")  # type: ignore[misc]
        assert answers(*where, port=9081)
        assert not answers(*where, port=9082), "it is a port of another address"
        assert not answers(*where, port=9083), "it is open at a loopback address only"
    for port, is_open in ((9080, True), (9081, False), (9083, True)):
        assert answers(*inside["node-1"], port=port, address="127.0.0.1") == is_open
    assert not answers(*inside["node-2"], address="127.0.0.1")
    ask = f"exec 3<>/dev/udp/{cluster.nodes['node-1'].address}/9053; echo question >&3; head -c 10 <&3"
    with answering(cluster.pid(project, "open"), 5300):
        assert run(*inside["node-2"], "timeout", "20", "bash", "-c", ask) == "the answer"
    cluster.kubectl("-n", project, "delete", "pod", "open", "--timeout=30s")
    listed = (*inside["node-1"], "nft", "list", "table", "ip", "podlane-hostports")
    wait_until(
        lambda: subprocess.run(listed, capture_output=True, timeout=CALL_SECONDS, check=False).returncode != 0,
        "the table is gone",
    )


def test_container_waits_for_objects_of_its_environment(cluster: Cluster, project: str) -> None:
    spec = """\
  containers:
  - name: main
    image: podlane/toolbox
    command: [tail, -f, /dev/null]
    resources: {limits: {cpu: 1500m}}
    envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: none, optional: true}}]
    env:
    - {name: WORD, valueFrom: {secretKeyRef: {name: words, key: word}}}
    - {name: CORES, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
"""
    cluster.apply(pod("web", project, spec))
    assert 'configmap "settings" not found' in wait_reason(cluster, project, "web", "CreateContainerConfigError")
    cluster.kubectl("-n", project, "create", "configmap", "settings", "--from-literal=color=red")
    cluster.kubectl("-n", project, "create", "secret", "generic", "words", "--from-literal=word=sesame")
    cluster.wait_running(project, "web")
    assert {"color=red", "WORD=sesame", "CORES=2"} <= set(cluster.execute(project, "web", "env").stdout.split())


def test_termination_message_is_in_the_status(cluster: Cluster, project: str) -> None:
    spec = """\
  restartPolicy: Never
  containers:
  - {name: main, image: podlane/toolbox, command: [sh, -c, "echo farewell > /dev/termination-log"]}
  - name: side
    image: podlane/toolbox
    command: [sh, -c, "echo adieu; exit 3"]
    terminationMessagePolicy: FallbackToLogsOnError
"""
    cluster.apply(pod("ends", project, spec))
    wait_until(lambda: cluster.status(project, "ends").get("phase") == "Failed", "both have ended")
    rows = cluster.status(project, "ends")["containerStatuses"]
    assert [container["state"]["terminated"]["message"] for container in rows] == ["farewell\n", "adieu\n"]


def test_pod_with_unknown_runtime_class_handler_waits_with_a_reason(cluster: Cluster, project: str) -> None:
    main = "  containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}]\n"
    runtime_class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n---\n"
    cluster.apply("".join(runtime_class % (name, name) for name in ("gvisor", "runc")))
    cluster.apply(
        pod("odd", project, "  runtimeClassName: gvisor\n" + main)
        + pod("plain", project, "  runtimeClassName: runc\n" + main)
    )
    cluster.wait_running(project, "plain")
    wait_until(lambda: cluster.status(project, "odd").get("reason") == "FailedCreatePodSandBox", "odd says why")
    assert "gvisor" in cluster.status(project, "odd")["message"]


def test_pod_has_a_cgroup_of_its_qos_class_until_it_is_gone(cluster: Cluster, project: str) -> None:
    small = "resources: {requests: {cpu: 100m}, limits: {cpu: 500m, memory: 64Mi}}"
    spec = (
        f"  nodeName: node-1\n  containers: [{{name: main, image: podlane/toolbox, command: [httpd, -f], {small}}}]\n"
    )
    cluster.apply(pod("grouped", project, spec))
    cluster.wait_running(project, "grouped")
    actual = cluster.pod(project, "grouped")
    assert actual is not None
    wanted = f"/kubepods/burstable/pod{actual['metadata']['uid']}/"
    assert wanted in Path(f"/proc/{cluster.pid(project, 'grouped')}/cgroup").read_text()
    node = cluster.nodes["node-1"].namespace
    groups = [group for group in (*CGROUPS.glob(f"*/{node}{wanted}"), CGROUPS / f"{node}{wanted}") if group.exists()]
    limits = [group / name for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    assert [limit.read_text().strip() for limit in limits if limit.exists()] == [str(64 << 20)]
    cluster.kubectl("-n", project, "delete", "pod", "grouped", "--timeout=30s")
    wait_until(lambda: not [group for group in groups if group.exists()], "its groups are gone")
