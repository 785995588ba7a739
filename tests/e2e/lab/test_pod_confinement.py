"""What a program in an editor's pod cannot do to its node, and what it can; an administrator's pod is the control."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace
from tests.testbed.lab.syscall_program import install_command, reaches_kernel
from tests.testbed.wait import wait_until

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
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
)  # fmt: skip
"""Names by number (linux/capability.h), as far as every Docker knows them."""


def machine_capabilities() -> list[str]:
    """Return the capabilities that programs of this machine can have. Docker starts no container with others."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (bounding,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))
    return [name for number, name in enumerate(CAPABILITIES) if bounding >> number & 1]


SYSCALL = "/tmp/syscall"
"""The program that makes one system call."""


def openable(*paths: str) -> str:
    """Return the command that opens the first of these files that exists for writing, and writes nothing."""
    return f'for f in {" ".join(paths)}; do test -e "$f" && : >> "$f" && exit 0; done; exit 1'


def at_any_root(command: str) -> str:
    """Return the command for a path of the node, wherever a pod may see the node's files."""
    return f"for root in '' /host /proc/1/root /proc/*/root; do {command} && exit 0; done; exit 1"


SYSTEM_CALLS = {
    "keyrings": (250, 0, -3),  # keyctl(KEYCTL_GET_KEYRING_ID)
    "BPF program": (321,),
    "performance events": (298,),
    "page faults in user space": (323,),  # userfaultfd
    "file by its handle": (304, -100),  # open_by_handle_at
    "swap": (167,),
    "clock": (164,),  # settimeofday without a time
    "reboot": (169,),  # without its magic numbers
    "namespace of another process": (308, -1),  # setns
    "new mount API": (430,),  # fsopen
    "tree of mounts": (428, -1),  # open_tree
    "move of mounts": (429, -1),  # move_mount
    "packets of all protocols": (41, 17, 3),  # socket(AF_PACKET, SOCK_RAW)
    "raw IP packets": (41, 2, 3, 1),  # socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)
    "user root": (105,),
    "groups of root": (116,),  # setgroups
    "kernel log": (103, 10),  # syslog(SYSLOG_ACTION_SIZE_BUFFER)
    "user namespace": (272, 0x10000000),  # unshare(CLONE_NEWUSER)
    "network namespace": (272, 0x40000000),
    "namespace of process IDs": (272, 0x20000000),
    "cgroup namespace": (272, 0x02000000),
    "user namespace of a new process": (56, 0x10000011),  # clone(CLONE_NEWUSER | SIGCHLD)
    "clone with a structure": (435,),  # clone3, whose flags seccomp cannot read
    "mount call": (165,),
    "unmount call": (166,),
    "root of all processes": (155,),  # pivot_root
    "files that others open": (300,),  # fanotify_init
    "name of the machine": (170, -1, 0),  # sethostname
}
"""Number and arguments on x86-64. With the right, the call succeeds or complains about its arguments."""

ATTEMPTS = {
    "mount": "mount -t tmpfs none /mnt 2>/dev/null || mount -t tmpfs none /tmp/mount",
    "writable /proc": "mount -o remount,rw /proc",
    "writable /sys": "mount -o remount,rw /sys",
    "device of a disk": "mknod /data/disk b 8 0",
    "memory of the machine": "mknod /data/mem c 1 1",
    "file of another user": "touch /data/mine && chown 12345 /data/mine",
    "hard link to a file of root": "ln /bin/busybox /tmp/link",
    "other user": "touch /root/file",
    "hosts of the pod": openable("/etc/hosts"),
    "name servers of the pod": openable("/etc/resolv.conf"),
    "host name": "hostname other",
    "network interface": "ip link set lo mtu 1400",
    "address of another pod": "ip address add 10.128.255.254/32 dev lo",
    "mount namespace": "unshare -m true",
    "mounts of another namespace": "nsenter -t $$ -m true",
    "root directory": "chroot / true",
    "program for core dumps": openable("/proc/sys/kernel/core_pattern"),
    "caches of the machine": openable("/proc/sys/vm/drop_caches"),
    "forwarding of packets": openable("/proc/sys/net/ipv4/ip_forward"),
    "interrupts of the machine": 'test -n "$(head -c 1 /proc/interrupts)"',
    "processes of the node": "ps | grep -q [d]ockerd",
    "file of the node": at_any_root("grep -q secret $root$MARKER"),
    "file of the node by a link": at_any_root("ln -sfn $root$MARKER /data/link && grep -q secret /data/link"),
    "Docker": at_any_root("test -e $root$DOCKER && curl -sf --unix-socket $root$DOCKER http://docker/version"),
    "signal to a process of the node": "kill -0 $VICTIM",
    "trace of a process of the node": f"{SYSCALL} 101 16902 $VICTIM 0 0 0 0",  # ptrace(PTRACE_SEIZE)
    "environment of a process of the node": "test -n \"$(tr -d '\\0' < /proc/$VICTIM/environ | head -c 1)\"",
    "cgroups of the machine": "(mount -t cgroup -o pids none /tmp/mount || mount -t cgroup2 none /tmp/mount) && ("
    + openable("/tmp/mount/release_agent", "/tmp/mount/cgroup.procs")
    + "); code=$?; umount /tmp/mount; exit $code",
    "limit of its processes": "for d in /sys/fs/cgroup/pids /sys/fs/cgroup; do mount -o remount,bind,rw $d; done;"
    + openable("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"),
    "settings of the kernel in /sys": openable(
        "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/uevent_helper"
    ),
    "firmware of the machine": 'test -n "$(ls /sys/firmware)"',
    "timers of the machine": 'test -n "$(head -c 1 /proc/timer_list)"',
    "network of the node": at_any_root("test -e $root$SDN && curl -s -m 2 --unix-socket $root$SDN http://sdn/STATUS"),
    **{name: reaches_kernel(SYSCALL, *call) for name, call in SYSTEM_CALLS.items()},
}


def run_attempts(cluster: Cluster, pod: str) -> set[str]:
    """Return the names of the attempts that succeed in a pod. One exec makes all of them."""
    node = cluster.nodes["node-1"].root
    paths = {"MARKER": cluster.lab.root / "marker", "DOCKER": node / "docker.sock", "SDN": node / "sdn.sock"}
    with subprocess.Popen(["sleep", "1000"]) as victim:
        lines = attempt_lines({**paths, "VICTIM": victim.pid})
        done = cluster.kubectl("exec", "-i", "-n", PROJECT, pod, "--", "sh", stdin="\n".join(lines))
        victim.kill()
    results = dict(line.split(" ", 1)[::-1] for line in done.stdout.splitlines())
    assert results.keys() == ATTEMPTS.keys(), done.stderr
    return {name for name, code in results.items() if code == "0"}


def attempt_lines(variables: Mapping[str, object]) -> list[str]:
    """Return the shell program that makes all attempts, and writes exit code and name of each."""
    return [
        *(f"export {name}={value}" for name, value in variables.items()),
        "mkdir -p /tmp/mount",
        install_command(SYSCALL),
        *(
            f'timeout 5 sh -c {shlex.quote(command)} > /dev/null 2>&1 < /dev/null; echo "$? {name}"'
            for name, command in ATTEMPTS.items()
        ),
    ]


@pytest.fixture(scope="module")
def project(cluster: Cluster) -> Iterator[str]:
    cluster.apply(namespace(PROJECT))
    cluster.kubectl("create", "rolebinding", "ann", "-n", PROJECT, "--clusterrole=edit", "--user=ann")
    cluster.kubectl(*EDITOR, "create", "-f", "-", stdin=json.dumps(POD))
    (container,) = POD["spec"]["containers"]  # type: ignore[index]
    mount = {"name": "host", "mountPath": f"/host{cluster.lab.root}", "readOnly": True}
    unconfined = {"type": "Unconfined"}
    powers = {
        "capabilities": {"add": machine_capabilities()},
        "seccompProfile": unconfined,
        "appArmorProfile": unconfined,
        "procMount": "Unmasked",
    }
    mighty = {
        **POD,
        "metadata": {"name": "mighty", "namespace": PROJECT},
        "spec": {
            **POD["spec"],  # type: ignore[dict-item]
            "hostPID": True,
            "containers": [
                {
                    **container,
                    "securityContext": powers,
                    "volumeMounts": [*container["volumeMounts"], mount],
                }
            ],
            "volumes": [*POD["spec"]["volumes"], {"name": "host", "hostPath": {"path": str(cluster.lab.root)}}],  # type: ignore[index]
        },
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(mighty))
    (cluster.lab.root / "marker").write_text("secret")
    cluster.wait_running(PROJECT, "ordinary", "mighty")
    yield PROJECT
    cluster.kubectl("delete", "namespace", PROJECT, "--timeout=60s")


def succeeds(cluster: Cluster, pod: str, command: str) -> bool:
    words = ("exec", "-n", PROJECT, pod, "--", "sh", "-c", command)
    return cluster.kubectl(*words, check=False).returncode == 0


@pytest.fixture(scope="module")
def successes(cluster: Cluster, project: str) -> dict[str, set[str]]:
    """Return the attempts that succeed, by pod."""
    return {pod: run_attempts(cluster, pod) for pod in ("ordinary", "mighty")}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_ordinary_pod_cannot_and_mighty_pod_can(successes: dict[str, set[str]], attempt: str) -> None:
    assert attempt in successes["mighty"]
    assert attempt not in successes["ordinary"]


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


def test_processes_of_an_ordinary_pod_are_limited_by_the_cgroup_of_the_pod(cluster: Cluster, project: str) -> None:
    """The limit holds for all containers together, so it is not in Docker's PidsLimit of each."""
    node = cluster.node_of(project, "ordinary")
    container = cluster.container(project, "ordinary")
    (inspected,) = json.loads(cluster.docker(node, "inspect", container))
    assert not inspected["HostConfig"]["PidsLimit"]
    rows = Path(f"/proc/{inspected['State']['Pid']}/cgroup").read_text().splitlines()
    paths = {
        controller: path for _, kind, path in (row.split(":", 2) for row in rows) for controller in kind.split(",")
    }
    top = Path("/sys/fs/cgroup/pids" if "pids" in paths else "/sys/fs/cgroup")
    of_container = top / paths.get("pids", paths.get("", "")).lstrip("/")
    uid = (cluster.pod(project, "ordinary") or {})["metadata"]["uid"]
    assert uid in of_container.parent.name.replace("_", "-")
    assert (of_container.parent / "pids.max").read_text() == "4096\n"
    assert (of_container / "pids.max").read_text() == "max\n"


def test_setuid_program_gives_no_rights_to_a_container_without_privilege_escalation(
    cluster: Cluster, project: str
) -> None:
    """A container of restricted-v2 is such a container. The other one shows that the program gives root at all."""
    (container,) = POD["spec"]["containers"]  # type: ignore[index]
    user = {**container, "securityContext": {"runAsUser": 1000}}
    bound = {**user, "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": False}}
    spec = {
        **POD["spec"],  # type: ignore[dict-item]
        "containers": [{**container, "name": "maker"}, {**user, "name": "loose"}, {**bound, "name": "bound"}],
    }
    manifest = {**POD, "metadata": {"name": "setuid", "namespace": project}, "spec": spec}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    cluster.wait_running(project, "setuid")

    def execute(name: str, *words: str, stdin: str = "") -> int:
        call = ("exec", "-i", "-n", project, "setuid", "-c", name, "--", *words)
        return cluster.kubectl(*call, stdin=stdin, check=False).returncode

    assert execute("maker", "sh", stdin=f"{install_command('/data/setuid')} && chmod 4755 /data/setuid") == 0
    assert execute("loose", "/data/setuid", "105", "0") == 0
    assert execute("bound", "/data/setuid", "105", "0") == errno.EPERM


def test_links_in_a_volume_lead_neither_a_mount_nor_a_message_out_of_it(cluster: Cluster, project: str) -> None:
    marker = cluster.lab.root / "marker"
    (container,) = POD["spec"]["containers"]  # type: ignore[index]
    links = f"mkdir /data/real; ln -s / /data/up; ln -s {marker} /data/message; ln -s {marker.parent} /data/node"
    own = {**container, "command": ["sh", "-c", "tail -f /dev/null"]}
    spec = {
        **POD["spec"],  # type: ignore[dict-item]
        "restartPolicy": "Never",
        "initContainers": [{**container, "name": "linker", "command": ["sh", "-c", links]}],
        "containers": [
            {**own, "name": name, "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": name}]}
            for name in ("real", "up", "node")
        ]
        + [{**container, "name": "speaker", "command": ["true"], "terminationMessagePath": "/data/message"}],
    }
    manifest = {**POD, "metadata": {"name": "links", "namespace": project}, "spec": spec}
    cluster.kubectl(*EDITOR, "create", "-f", "-", stdin=json.dumps(manifest))

    def states() -> dict[str, dict[str, Any]]:
        rows = cluster.status(project, "links").get("containerStatuses", [])
        return {row["name"]: row["state"] for row in rows}

    def settled() -> bool:
        actual = states()
        reasons = [actual.get(name, {}).get("waiting", {}).get("reason", "") for name in ("up", "node")]
        return reasons == ["CreateContainerConfigError"] * 2 and "running" in actual["real"] and has_ended(actual)

    def has_ended(actual: dict[str, dict[str, Any]]) -> bool:
        return "terminated" in actual["speaker"] or "waiting" in actual["speaker"]

    wait_until(settled, "each container has got its state")
    assert "leads out of the volume" in states()["up"]["waiting"]["message"]
    assert "secret" not in json.dumps(states()["speaker"])


def test_editor_executes_in_the_ordinary_pod_only(cluster: Cluster, project: str) -> None:
    def execute(pod: str) -> str:
        done = cluster.kubectl(*EDITOR, "exec", "-n", project, pod, "--", "id", "-u", check=False)
        return done.stdout + done.stderr

    assert execute("ordinary").strip().isdecimal()
    assert "exec operation is not allowed because the pod's security context exceeds your permissions" in execute(
        "mighty"
    )
