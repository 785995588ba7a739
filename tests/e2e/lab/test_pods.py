"""Pods through kubectl."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from lab.process import run
from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace, pod
from tests.testbed.wait import CALL_SECONDS, wait_until


@pytest.fixture
def project(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    name = request.node.name.replace("_", "-").split("[")[0][:40].rstrip("-") + f"-{digest}"
    cluster.apply(namespace(name))
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout=60s")


def test_pods_with_several_containers_run_with_an_address_of_their_nodes_subnet(cluster: Cluster, project: str) -> None:
    two = f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: pair, namespace: {project}, labels: {{app: pair}}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {{name: shared, emptyDir: {{}}}}
  - {{name: etc, hostPath: {{path: /etc, type: Directory}}}}
  containers:
  - name: writer
    image: podlane/toolbox
    workingDir: /tmp
    env: [{{name: WHO, value: "the $(KIND)"}}, {{name: KIND, value: writer}}, {{name: BOTH, value: "$(KIND)!"}}]
    command: [sh, -c, 'echo "$WHO $BOTH $(pwd)" > /data/said; exec httpd -f -p 8080 -h /data']
    volumeMounts: [{{name: shared, mountPath: /data}}]
    resources: {{limits: {{cpu: 200m, memory: 32Mi}}}}
  - name: reader
    image: podlane/toolbox
    args: [sh, -c, "exec httpd -f -p 8081 -h /"]
    volumeMounts: [{{name: shared, mountPath: /data, readOnly: true}}, {{name: etc, mountPath: /host, readOnly: true}}]
"""
    cluster.apply(two + pod("alone", project, "node-3"))
    cluster.wait_running(project, "pair", "alone")
    for name in ("pair", "alone"):
        node = cluster.node_of(project, name)
        subnet = cluster.kubectl("get", "hostsubnet", node, "-o", "jsonpath={.subnet}").stdout
        assert IPv4Address(cluster.address(project, name)) in IPv4Network(subnet)
    assert cluster.node_of(project, "alone") == "node-3"
    node, reader = cluster.node_of(project, "pair"), cluster.container(project, "pair", "reader")
    assert cluster.docker(node, "exec", reader, "cat", "/data/said").strip() == "the $(KIND) writer! /tmp"
    assert "pair" in cluster.docker(node, "exec", reader, "cat", "/etc/hosts")
    assert cluster.docker(node, "exec", reader, "wget", "-qO-", "http://127.0.0.1:8080/said")
    info = json.loads(cluster.docker(node, "inspect", cluster.container(project, "pair", "writer")))[0]
    assert info["HostConfig"]["Memory"] == 32 << 20
    assert info["HostConfig"]["CpuQuota"] == 20_000
    table = cluster.kubectl("-n", project, "get", "pods", "-o", "wide").stdout
    assert "2/2" in table
    assert "Running" in table


def test_pods_reach_only_pods_of_their_own_project_across_nodes(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("a", project, "node-1") + pod("b", project, "node-2"))
    cluster.wait_running(project, "a", "b")
    here, there = cluster.address(project, "a"), cluster.address(project, "b")
    assert cluster.pings((project, "a"), there)
    assert cluster.execute(project, "a", "wget", "-qO-", f"http://{there}:8080/etc/passwd").returncode == 0
    assert cluster.pings(("default", "default-3"), here)
    assert cluster.pings((project, "a"), cluster.address("default", "default-3"))
    for spy in (("red", "red-1"), ("red", "red-3")):
        assert cluster.pings(spy, cluster.address("red", "red-2"))
        assert not cluster.pings(spy, here)
        assert not cluster.pings((project, "b"), cluster.address(*spy))
    assert cluster.pings((project, "a"), str(cluster.lab.site.outside))


def test_pod_exchanges_tcp_and_udp_with_the_outside_and_its_node(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("a", project, "node-1"))
    cluster.wait_running(project, "a")
    outside = str(cluster.lab.site.outside)
    inside = ("nsenter", f"--net=/proc/{cluster.pid(project, 'a')}/ns/net")
    with socket.create_server((outside, 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((outside, 0))
        for sock, protocol in ((server, "tcp"), (datagrams, "udp")):
            sock.settimeout(20)
            talk = f"exec 3<>/dev/{protocol}/{outside}/{sock.getsockname()[1]}; echo question >&3; head -c 10 <&3"
            with ThreadPoolExecutor() as pool:
                answer = pool.submit(run, *inside, "timeout", "20", "bash", "-c", talk)
                seen = _answered(sock)
                assert seen == str(cluster.nodes["node-1"].address), "it comes with the address of its node"
                assert answer.result() == "the answer"
    node = ("nsenter", f"--net=/run/netns/{cluster.nodes['node-2'].namespace}")
    url = f"http://{cluster.address(project, 'a')}:8080/etc/passwd"
    assert "root" in run(*node, "curl", "-sS", "--max-time", "10", url)


def _answered(server: socket.socket) -> str:
    """Answer one request, and return the address of its sender."""
    if server.type is socket.SOCK_DGRAM:
        question, (asker, port) = server.recvfrom(100)
        server.sendto(b"the answer", (asker, port))
    else:
        connection, (asker, port) = server.accept()
        with connection:
            question = connection.recv(100)
            connection.sendall(b"the answer")
    assert question == b"question\n"
    return str(asker)


def test_pod_with_a_spoofed_address_reaches_nothing(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("thief", project, "node-1") + pod("friend", project, "node-2"))
    cluster.wait_running(project, "thief", "friend")
    inside = ("nsenter", f"--net=/proc/{cluster.pid(project, 'thief')}/ns/net")
    own, friend = cluster.address(project, "thief"), cluster.address(project, "friend")
    targets = [friend, *(cluster.address(*target) for target in (("red", "red-2"), ("default", "default-1")))]
    borrowed = [cluster.address("red", "red-1"), cluster.address("default", "default-3"), "10.131.255.7", "172.30.0.1"]

    def answered(source: str, target: str) -> bool:
        ping = (*inside, "ping", "-c", "2", "-i", "0.1", "-W", "1", "-I", source, target)
        return subprocess.run(ping, capture_output=True, timeout=CALL_SECONDS, check=False).returncode == 0

    assert answered(own, friend)
    for source in borrowed:
        run(*inside, "ip", "addr", "add", f"{source}/32", "dev", "eth0")
        assert not [target for target in targets if answered(source, target)], source
        run(*inside, "ip", "addr", "del", f"{source}/32", "dev", "eth0")
    assert answered(own, friend)


def test_deleted_pod_is_gone_within_its_grace_period_and_leaves_nothing(cluster: Cluster, project: str) -> None:
    before = {node: cluster.traces(node) for node in cluster.nodes}
    names = [f"p{number}" for number in range(4)]
    cluster.apply("".join(pod(name, project, f"node-{1 + index % 2}") for index, name in enumerate(names)))
    cluster.wait_running(project, *names)
    cluster.kubectl("-n", project, "delete", "pods", *names, "--timeout=30s")
    assert not cluster.kubectl("-n", project, "get", "pods", "-o", "name").stdout
    wait_until(lambda: {node: cluster.traces(node) for node in cluster.nodes} == before, "the nodes are as before")


def test_deleting_a_project_deletes_its_pods(cluster: Cluster) -> None:
    before = {node: cluster.traces(node) for node in cluster.nodes}
    cluster.apply(namespace("doomed") + pod("one", "doomed", "node-1") + pod("two", "doomed", "node-2"))
    cluster.wait_running("doomed", "one", "two")
    cluster.kubectl("delete", "namespace", "doomed", "--timeout=60s")
    wait_until(lambda: {node: cluster.traces(node) for node in cluster.nodes} == before, "the nodes are as before")
    assert "doomed" not in cluster.kubectl("get", "netnamespaces", "-o", "name").stdout


def test_pod_status_overwritten_by_another_client_is_corrected(cluster: Cluster, project: str) -> None:
    cluster.apply(pod("told", project, "node-2"))
    cluster.wait_running(project, "told")
    address = cluster.address(project, "told")
    lie = {"podIP": "10.128.0.1", "phase": "Failed", "conditions": [{"type": "example.com/gate", "status": "True"}]}
    patch = ("patch", "pod", "told", "--subresource=status", "--type=strategic", "-p", json.dumps({"status": lie}))
    cluster.kubectl("-n", project, *patch)
    wait_until(lambda: cluster.status(project, "told").get("podIP") == address, "the address is told as it is")
    status = cluster.status(project, "told")
    assert status["phase"] == "Running"
    assert "example.com/gate" in {condition["type"] for condition in status["conditions"]}, "what others say stays"


def test_pod_restarts_follow_its_restart_policy(cluster: Cluster, project: str) -> None:
    cluster.apply(
        pod("crashes", project, command="exit 3")
        + pod("succeeds", project, command="exit 0", extra="\n  restartPolicy: Never")
        + pod("fails", project, command="exit 4", extra="\n  restartPolicy: Never")
        + pod("retries", project, command="exit 0", extra="\n  restartPolicy: OnFailure")
    )
    wait_until(lambda: cluster.status(project, "succeeds").get("phase") == "Succeeded", "succeeds")
    wait_until(lambda: cluster.status(project, "retries").get("phase") == "Succeeded", "retries")
    wait_until(lambda: cluster.status(project, "fails").get("phase") == "Failed", "fails")
    [status] = cluster.status(project, "fails")["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 4

    def crash_looping() -> bool:
        rows = cluster.status(project, "crashes").get("containerStatuses", [])
        return any(
            status["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" and status["restartCount"] >= 1
            for status in rows
        )

    wait_until(crash_looping, "crashes waits")
    assert "CrashLoopBackOff" in cluster.kubectl("-n", project, "get", "pods").stdout


def test_pod_with_a_missing_image_waits_with_a_reason(cluster: Cluster, project: str) -> None:
    manifest = pod("absent", project).replace(
        "image: podlane/toolbox", "image: nobody/nothing:1, imagePullPolicy: Never"
    )
    cluster.apply(manifest + pod("pulls", project).replace("podlane/toolbox", "nobody/nothing:1"))

    def reason(name: str) -> str:
        rows = cluster.status(project, name).get("containerStatuses", [{"state": {}}])
        return str(rows[0]["state"].get("waiting", {}).get("reason"))

    wait_until(lambda: reason("absent") == "ErrImageNeverPull", "absent")
    wait_until(lambda: reason("pulls") in {"ErrImagePull", "ImagePullBackOff"}, "pulls")


def test_pod_reaches_the_api_server_with_its_service_account(cluster: Cluster, project: str) -> None:
    account = f"--serviceaccount={project}:default"
    cluster.kubectl("-n", project, "create", "rolebinding", "sees", "--clusterrole=view", account)
    cluster.apply(pod("talker", project, "node-1"))
    cluster.wait_running(project, "talker")

    def service_account_file(name: str) -> str:
        return cluster.execute(project, "talker", "cat", f"/var/run/secrets/kubernetes.io/serviceaccount/{name}").stdout

    assert service_account_file("namespace") == project
    assert "KUBERNETES_SERVICE_HOST=172.30.0.1\n" in cluster.execute(project, "talker", "env").stdout
    authority = cluster.nodes["node-1"].root / "talker.crt"
    authority.write_text(service_account_file("ca.crt"))
    jsonpath = "{.subsets[0].addresses[0].ip}:{.subsets[0].ports[0].port}"
    master = cluster.kubectl("get", "endpoints", "kubernetes", "-o", f"jsonpath={jsonpath}").stdout
    inside = ("nsenter", f"--net=/proc/{cluster.pid(project, 'talker')}/ns/net")
    curl = (*inside, "curl", "-sS", "--max-time", "10", "--cacert", str(authority))
    url = f"https://{master}/api/v1/namespaces/{project}/pods"
    answer = json.loads(run(*curl, "-H", f"Authorization: Bearer {service_account_file('token')}", url))
    assert [obj["metadata"]["name"] for obj in answer["items"]] == ["talker"]
    assert json.loads(run(*curl, url))["reason"] == "Forbidden"


def test_empty_dir_is_deleted_with_its_pod(cluster: Cluster, project: str) -> None:
    volume = "\n  volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]"
    text = pod("keeper", project, "node-1", extra=volume).replace(
        '"]}', '"], volumeMounts: [{name: v, mountPath: /v}]}'
    )
    cluster.apply(text)
    cluster.wait_running(project, "keeper")
    assert "tmpfs on /v type tmpfs" in cluster.execute(project, "keeper", "mount").stdout
    uid = (cluster.pod(project, "keeper") or {})["metadata"]["uid"]
    mount = f"{cluster.nodes['node-1'].root.resolve()}/node-agent/pods/{uid}/"
    assert mount in Path("/proc/mounts").read_text()
    cluster.kubectl("-n", project, "delete", "pod", "keeper", "--timeout=30s")
    wait_until(lambda: mount not in Path("/proc/mounts").read_text(), "the tmpfs is unmounted")


def test_static_pods_start_and_end_with_their_file(cluster: Cluster) -> None:
    node = cluster.nodes["node-2"]
    before = cluster.traces("node-2")
    manifest = node.root / "manifests" / "static.yaml"
    manifest.write_text(pod("static", "default", grace=0))
    name = "k8s_main_static-node-2_default_"
    wait_until(lambda: name in cluster.docker("node-2", "ps", "--format", "{{.Names}}"), "the static pod runs")
    bad = node.root / "manifests" / "bad.yaml"
    bad.write_text(pod("bad", "default").replace("image: podlane/toolbox", "imagine: x").replace("main", "Main"))
    log = node.root / "log" / "node-agent.log"
    wait_until(lambda: "bad.yaml document 1: not accepted (3 problems)" in log.read_text(), "the refusal")
    for path in ("spec.containers[0].imagine", "spec.containers[0].image", "spec.containers[0].name"):
        assert path in log.read_text()
    assert name in cluster.docker("node-2", "ps", "--format", "{{.Names}}"), "the other pods go on"
    manifest.unlink()
    bad.unlink()
    wait_until(lambda: cluster.traces("node-2") == before, "the static pod is gone")


def test_invalid_manifest_is_rejected_with_all_its_errors(cluster: Cluster, project: str) -> None:
    wrong = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: Wrong_Name, namespace: {project}}}
spec:
  restartPolicy: Sometimes
  containers:
  - {{name: one, ports: [{{containerPort: 70000}}]}}
  - {{name: one, image: x, volumeMounts: [{{name: nowhere, mountPath: data}}]}}
"""
    done = cluster.kubectl("apply", "-f", "-", stdin=wrong, check=False)
    assert done.returncode != 0
    for path in (
        "metadata.name",
        "spec.restartPolicy",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[1].name",
        "spec.containers[1].volumeMounts[0].name",
        "spec.containers[1].volumeMounts[0].mountPath",
    ):
        assert path in done.stderr, done.stderr
    unknown = pod("typo", project).replace("terminationGracePeriodSeconds", "terminationGraceSeconds")
    done = cluster.kubectl("apply", "-f", "-", stdin=unknown, check=False)
    assert done.returncode != 0
    assert "terminationGraceSeconds" in done.stderr
    assert not cluster.kubectl("-n", project, "get", "pods", "-o", "name").stdout
