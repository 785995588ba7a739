"""Names, labels and sandboxes in Docker; host names and resolvers of pods."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.node.inspection import (
    SANDBOX,
    container,
    container_status,
    exec_output,
    inspect_container,
    pod,
    pod_dir,
    uid_of,
    wait_for_event,
    wait_running,
)
from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until

LONG = "x" * 61 + "--" + "y" * 20
RESOLV_CONF = "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch lan\noptions rotate\n"
OF_POD = "default.svc.cluster.local svc.cluster.local cluster.local lan"
WEB = pod(
    "web",
    container(
        ports=[{"name": "http", "containerPort": 8080}],
        terminationMessagePath="/tmp/words",
        terminationMessagePolicy="FallbackToLogsOnError",
        lifecycle={"preStop": {"httpGet": {"path": "/bye", "port": "http"}}},
    ),
    container("side"),
    meta={
        "labels": {"app": "web"},
        "annotations": {"example.com/note": "hello", "openshift.io/required-scc": "privileged"},
    },
    hostname="shop",
    subdomain="shops",
    hostAliases=[
        {"ip": "192.0.2.9", "hostnames": ["a.example", "b.example"]},
        {"ip": "192.0.2.10", "hostnames": ["c.example"]},
    ],
    dnsConfig={
        "nameservers": ["192.0.2.1"],
        "searches": ["more.example"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    },
)
MUCH = {"nameservers": ["192.0.2.6", "192.0.2.7", "192.0.2.8"], "searches": [f"d{number}" for number in range(31)]}
RUNNING = {
    "web": WEB,
    "fqdn": pod("fqdn", hostname="shop", subdomain="shops", setHostnameAsFQDN=True),
    LONG: pod(LONG),
    "host": pod(
        "host", hostNetwork=True, hostPID=True, hostIPC=True, hostAliases=[{"ip": "192.0.2.9", "hostnames": ["a.b"]}]
    ),
    "own-hosts": pod(
        "own-hosts",
        container(volumeMounts=[{"name": "v", "mountPath": "/etc/hosts"}]),
        volumes=[{"name": "v", "hostPath": {"path": "/etc/hostname", "type": "File"}}],
    ),
    "as-its-host": pod("as-its-host", dnsPolicy="Default"),
    "cluster-on-host": pod("cluster-on-host", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
    "on-its-own": pod("on-its-own", dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.53"]}),
    "too-much": pod("too-much", dnsConfig=MUCH),
}


@pytest.fixture(scope="module")
def node() -> Iterator[SingleNode]:
    with SingleNode() as running:
        resolv_conf = running.root / "resolv.conf"
        resolv_conf.write_text(RESOLV_CONF)
        running.agent("--cluster-dns=[10.96.0.10]", f"--resolv-conf={resolv_conf}")
        too_long = pod("fqdn-too-long", subdomain="s" * 40, setHostnameAsFQDN=True)
        running.kubectl("apply", "-f", "-", stdin="".join(RUNNING.values()) + too_long)
        wait_running(running, *RUNNING)
        yield running


def test_containers_have_names_and_labels_of_dockershim(node: SingleNode) -> None:
    uid, main, sandbox = uid_of(node, "web"), inspect_container(node, "web"), inspect_container(node, "web", SANDBOX)
    assert (main["Name"], sandbox["Name"]) == (f"/k8s_main_web_default_{uid}_0", f"/k8s_POD_web_default_{uid}_0")
    both = {"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid}
    of_sandbox = {
        "io.kubernetes.docker.type": "podsandbox",
        "io.kubernetes.container.name": "POD",
        "app": "web",
        "annotation.example.com/note": "hello",
        "annotation.kubernetes.io/config.source": "api",
    }
    of_container = {
        "io.kubernetes.docker.type": "container",
        "io.kubernetes.container.name": "main",
        "io.kubernetes.sandbox.id": sandbox["Id"],
        "io.kubernetes.container.logpath": f"{node.root}/logs/pods/default_web_{uid}/main/0.log",
        "annotation.io.kubernetes.container.restartCount": "0",
        "annotation.io.kubernetes.container.terminationMessagePath": "/tmp/words",
        "annotation.io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError",
        "annotation.io.kubernetes.pod.terminationGracePeriod": "0",
    }
    labels = main["Config"]["Labels"]
    assert sandbox["Config"]["Labels"].items() >= (both | of_sandbox).items()
    assert labels.items() >= (both | of_container).items()
    assert int(labels["annotation.io.kubernetes.container.hash"], 16)
    [port] = json.loads(labels["annotation.io.kubernetes.container.ports"])
    assert port == {"name": "http", "containerPort": 8080, "protocol": "TCP"}
    hook = json.loads(labels["annotation.io.kubernetes.container.preStopHandler"])
    assert hook["httpGet"]["port"] == 8080, "who knows nothing but the container can run its hook"
    log = Path(of_container["io.kubernetes.container.logpath"])
    wait_until(log.is_symlink, "the log is where its label says")
    wait_until(lambda: container_status(node, "web").get("containerID"), "its id is told")
    assert container_status(node, "web")["containerID"] == f"docker://{main['Id']}"
    assert container_status(node, "web")["imageID"] == f"docker://{main['Image']}", "no registry knows the image"


def test_sandbox_is_created_with_dockershims_config(node: SingleNode) -> None:
    sandbox = inspect_container(node, "web", SANDBOX)
    host, config = sandbox["HostConfig"], sandbox["Config"]
    wanted = {
        "NetworkMode": "none",
        "IpcMode": "shareable",
        "PidMode": "",
        "UTSMode": "",
        "CpuShares": 2,
        "CpuQuota": 0,
        "Memory": 0,
        "MemorySwap": 0,
        "Privileged": False,
        "CapAdd": None,
        "CapDrop": None,
        "SecurityOpt": ["no-new-privileges"],
        "ShmSize": 64 << 20,
        "PortBindings": None,
        "Binds": [],
    }
    assert {key: host[key] for key in wanted} == wanted
    assert host["CgroupParent"] == f"/{node.root.name}/kubepods/besteffort/pod{uid_of(node, 'web')}"
    assert host["OomScoreAdj"] == max(-998, least_oom_score())
    image = json.loads(node.docker("inspect", "podlane/pause"))[0]
    assert (config["Image"], config["Entrypoint"]) == ("podlane/pause", image["Config"]["Entrypoint"])
    assert config["User"] == image["Config"]["User"]
    assert (config["Hostname"], config["Domainname"]) == ("shop", "shops.default.svc.cluster.local")


def least_oom_score() -> int:
    """Return the lowest score that the kernel permits root on this machine."""
    own = Path("/proc/self/oom_score_adj").read_text()
    try:
        Path("/proc/self/oom_score_adj").write_text("-1000")
    except OSError:
        return int(own)
    Path("/proc/self/oom_score_adj").write_text(own)
    return -1000


def test_container_joins_its_sandbox_as_in_dockershim(node: SingleNode) -> None:
    main, sandbox = inspect_container(node, "web"), inspect_container(node, "web", SANDBOX)
    host, config = main["HostConfig"], main["Config"]
    joined = f"container:{sandbox['Id']}"
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"], host["UTSMode"]) == (joined, joined, "", "")
    assert host["RestartPolicy"]["Name"] in {"", "no"}
    assert config["Healthcheck"] == {"Test": ["NONE"]}
    assert main["Image"] == config["Image"] == json.loads(node.docker("inspect", "podlane/toolbox"))[0]["Id"]
    assert (config["User"], config["AttachStdin"], config["AttachStdout"], config["AttachStderr"]) == (
        "0",
        *[False] * 3,
    )
    mounts = {mount["Destination"]: mount for mount in main["Mounts"]}
    directory = pod_dir(node, "web")
    account = mounts.pop("/var/run/secrets/kubernetes.io/serviceaccount")
    assert (Path(account["Source"]).parent, account["RW"]) == (directory / "volumes/kubernetes.io~projected", False)
    assert {to: mount["Source"] for to, mount in mounts.items() if to != "/etc/resolv.conf"} == {
        "/etc/hosts": f"{directory}/etc-hosts",
        "/tmp/words": f"{directory}/containers/main/00000000",
    }
    assert {mount["Propagation"] for mount in mounts.values()} == {"rprivate"}
    assert (directory / "containers/main/00000000").stat().st_mode & 0o777 == 0o666
    resolvers = [
        exec_output(node, "web", "stat", "-c", "%d %i", "/etc/resolv.conf", container=container_name)
        for container_name in ("main", "side")
    ]
    assert resolvers[0] == resolvers[1], "one file is for all"
    assert "64.0M" in exec_output(node, "web", "df", "-h", "/dev/shm")


def test_pod_has_the_hostname_of_its_spec(node: SingleNode) -> None:
    assert exec_output(node, "web", "hostname").strip() == "shop"
    assert exec_output(node, "fqdn", "hostname").strip() == "shop.shops.default.svc.cluster.local"
    assert exec_output(node, LONG, "hostname").strip() == "x" * 61, "cut at 63, without what it must not end with"
    assert exec_output(node, "host", "hostname").strip() == os.uname().nodename
    why = wait_for_event(node, "fqdn-too-long", "FailedCreatePodSandBox")
    assert "Failed to construct FQDN from pod hostname and cluster domain" in why
    assert "is longer than 64" in why


def test_host_namespace_pod_is_in_the_hosts_namespaces(node: SingleNode) -> None:
    main, sandbox = inspect_container(node, "host"), inspect_container(node, "host", SANDBOX)
    host = sandbox["HostConfig"]
    assert [host[f"{kind}Mode"] for kind in ("Network", "Pid", "Ipc", "UTS")] == ["host"] * 4
    assert main["HostConfig"]["UTSMode"] == "host"
    for kind in ("net", "pid", "ipc", "uts"):
        path = Path(f"/proc/{main['State']['Pid']}/ns/{kind}").readlink()
        assert path == Path(f"/proc/self/ns/{kind}").readlink(), kind


def test_hosts_file_has_kubelets_content(node: SingleNode) -> None:
    head = [
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::0\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ]
    aliases = ["", "# Entries added by HostAliases.", "192.0.2.9\ta.example\tb.example", "192.0.2.10\tc.example"]
    for name in ("main", "side"):
        assert exec_output(node, "web", "cat", "/etc/hosts", container=name).splitlines() == head + aliases
    assert (pod_dir(node, "web") / "etc-hosts").stat().st_mode & 0o777 == 0o644
    of_host = Path("/etc/hosts").read_text().splitlines()
    aliases = ["", "# Entries added by HostAliases.", "192.0.2.9\ta.b"]
    managed = ["# Kubernetes-managed hosts file (host network)."]
    assert exec_output(node, "host", "cat", "/etc/hosts").splitlines() == managed + of_host + aliases
    assert exec_output(node, "own-hosts", "cat", "/etc/hosts") == Path("/etc/hostname").read_text()


def test_resolv_conf_follows_dns_policy(node: SingleNode) -> None:
    cluster = f"nameserver 10.96.0.10\nsearch {OF_POD}\noptions ndots:5\n"
    wanted = {
        "fqdn": cluster,
        "as-its-host": RESOLV_CONF,
        "host": RESOLV_CONF,
        "cluster-on-host": cluster,
        "on-its-own": "nameserver 192.0.2.53\n",
        "web": f"nameserver 10.96.0.10\nnameserver 192.0.2.1\nsearch {OF_POD} more.example\noptions ndots:2 edns0\n",
    }
    assert {name: exec_output(node, name, "cat", "/etc/resolv.conf") for name in wanted} == wanted


def test_resolv_conf_entries_over_the_limits_are_omitted_and_reported(node: SingleNode) -> None:
    servers, _, search = exec_output(node, "too-much", "cat", "/etc/resolv.conf").partition("search ")
    assert servers == "nameserver 10.96.0.10\nnameserver 192.0.2.6\nnameserver 192.0.2.7\n"
    assert len(search.splitlines()[0].split()) == 32
    why = wait_for_event(node, "too-much", "DNSConfigForming")
    assert "Nameserver limits were exceeded" in why
    assert "Search limits were exceeded" in why
    assert "the applied nameserver line is: 10.96.0.10 192.0.2.6 192.0.2.7" in why


def test_containers_restart_in_a_new_sandbox_when_theirs_ends(node: SingleNode) -> None:
    before = {name: inspect_container(node, "web", name) for name in (SANDBOX, "main", "side")}
    node.docker("kill", before[SANDBOX]["Id"])
    wait_until(
        lambda: [container_status(node, "web", name).get("restartCount") for name in ("main", "side")] == [1, 1],
        "both again",
    )
    wait_running(node, "web")
    after = {name: inspect_container(node, "web", name) for name in before}
    assert {name: inspected["Name"].rpartition("_")[2] for name, inspected in after.items()} == dict.fromkeys(
        before, "1"
    )
    assert after["main"]["HostConfig"]["NetworkMode"] == f"container:{after[SANDBOX]['Id']}"
    assert wait_for_event(node, "web", "SandboxChanged")
    assert "00000001" in {Path(mount["Source"]).name for mount in after["main"]["Mounts"]}
    assert before["main"]["Id"] in node.docker("ps", "-aq", "--no-trunc"), "the earlier one stays for its log"


def test_newest_of_two_sandboxes_is_kept(node: SingleNode) -> None:
    before = inspect_container(node, "fqdn", SANDBOX)
    labels = before["Config"]["Labels"] | {"annotation.podlane.io/sandbox.attempt": "7"}
    words = [f"--label={key}={value}" for key, value in labels.items()]
    node.docker("run", "-d", "--network=none", "--ipc=shareable", "--name=stray", *words, "podlane/pause")
    wait_until(lambda: container_status(node, "fqdn").get("restartCount") == 1, "its container has moved")
    wait_running(node, "fqdn")
    after = inspect_container(node, "fqdn", SANDBOX)
    assert after["Name"] == "/stray"
    assert inspect_container(node, "fqdn")["HostConfig"]["NetworkMode"] == f"container:{after['Id']}"
    wait_until(lambda: before["Id"] not in node.docker("ps", "-aq", "--no-trunc"), "the other one is gone")


def test_pod_uses_host_resolver_with_an_event_when_cluster_dns_is_missing(node: SingleNode) -> None:
    node.agent(f"--resolv-conf={node.root}/resolv.conf", "--pause-image=127.0.0.1:9/pause:1")
    node.kubectl("apply", "-f", "-", stdin=pod("late"))
    assert "127.0.0.1:9" in wait_for_event(node, "late", "FailedCreatePodSandBox"), (
        "the image of the sandbox is fetched"
    )
    node.agent("--network=sdn", f"--sdn-socket={node.root}/none")
    wait_until(lambda: "network: " in wait_for_event(node, "late", "FailedCreatePodSandBox"), "the network is away")
    node.agent(f"--resolv-conf={node.root}/resolv.conf")
    wait_running(node, "late")
    assert exec_output(node, "late", "cat", "/etc/resolv.conf") == RESOLV_CONF
    assert 'Falling back to "Default" policy' in wait_for_event(node, "late", "MissingClusterDNS")


def test_sandbox_start_is_retried_with_back_off(node: SingleNode) -> None:
    wrong = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "none"}]}
    began = time.monotonic()
    node.kubectl("apply", "-f", "-", stdin=pod("unstartable", securityContext=wrong))
    wait_until(lambda: "k8s_POD_unstartable" in node.docker("ps", "-a", "--format", "{{.Names}}"), "the first attempt")
    third = re.compile(r"k8s_POD_unstartable_default_\S+_3$", re.MULTILINE)
    wait_until(lambda: third.search(node.docker("ps", "-a", "--format", "{{.Names}}")), "the third attempt after it")
    assert time.monotonic() - began >= 1 + 2 + 4, "the attempts were nearer together than their delays"
    assert node.status("unstartable")["phase"] == "Pending"
    node.kubectl("delete", "pod", "unstartable", "--timeout=30s")
