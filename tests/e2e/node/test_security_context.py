"""Security contexts of pods and containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_agent.runtime.security import MASKED_PATHS
from tests.testbed.docker import restricted_runc
from tests.testbed.node.images import add_image
from tests.testbed.node.inspection import (
    SANDBOX,
    container,
    container_status,
    exec_fails,
    exec_output,
    inspect_container,
    pod_dir,
    unrestricted,
    wait_running,
    wait_waiting,
)
from tests.testbed.node.pods import runtime_class
from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until

APP = "podlane/app:1"
"""Its USER is `app`, 1000 of the group 1000; /etc/group has it in 50000 as well."""

FILES = {
    "etc/passwd": "root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n",
    "etc/group": "root:x:0:\napp:x:1000:\nextra:x:50000:app\n",
}
MASKED = ("plain", "unmasked", "mighty")
KNOWN = (1 << 38) - 1
"""Capabilities that every Docker knows: all but the latest of the kernel."""

NO_DIRECTORIES = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}
WHO = {"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [4000]}
EMPTY = [{"name": "v", "emptyDir": {}}]


def secured(name: str, own: Any = None, shared: Any = None, image: str = "podlane/toolbox", **spec: Any) -> str:
    """Return a pod with this security context for its container and for itself."""
    return unrestricted(name, container(image=image, securityContext=own or {}), securityContext=shared or {}, **spec)


def profile(kind: str, name: str = "") -> dict[str, Any]:
    return {"seccompProfile": {"type": kind} | ({"localhostProfile": name} if name else {})}


def mounting(propagation: str, **context: Any) -> dict[str, Any]:
    return {
        "volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": propagation}],
        "securityContext": context,
    }


RUNNING = {
    "plain": secured("plain"),
    "of-docker": secured("of-docker", profile("RuntimeDefault"), profile("Unconfined")),
    "of-the-pod": secured("of-the-pod", None, profile("RuntimeDefault")),
    "own-profile": secured("own-profile", profile("Localhost", "no/directories.json")),
    "who": unrestricted(
        "who",
        container(),
        container("other", securityContext={"runAsUser": 1001, "runAsGroup": 0}),
        securityContext=WHO,
    ),
    "named": secured("named", image=APP),
    "merged": secured("merged", {"runAsUser": 1000}, {"supplementalGroups": [60000]}, APP),
    "strict": secured(
        "strict",
        {"runAsUser": 1000, "runAsGroup": 1000},
        {"supplementalGroups": [60000], "supplementalGroupsPolicy": "Strict"},
        APP,
    ),
    "small": secured(
        "small",
        {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "windowsOptions": {"runAsUserName": "ContainerUser"},
        },
    ),
    "unmasked": secured("unmasked", {"procMount": "Unmasked"}),
    "labelled": secured("labelled", {"seLinuxOptions": {"level": "s0:c1"}}, {"seLinuxOptions": {"type": "t"}}),
    "tuned": secured("tuned", None, {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}]}),
    "mighty": unrestricted(
        "mighty",
        container(**mounting("Bidirectional", privileged=True)),
        container("follower", **mounting("HostToContainer")),
        container("loner", **mounting("None")),
        runtimeClassName=restricted_runc.NAME,
        volumes=EMPTY,
    ),
    "mounter": secured("mounter", {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
    "guaranteed": unrestricted("guaranteed", container(resources={"limits": {"cpu": "100m", "memory": "16Mi"}})),
    "confined": secured("confined", {"appArmorProfile": {"type": "RuntimeDefault"}}),
}
WAITING = (
    secured("no-profile", profile("Localhost", "none.json")),
    secured("root", {"runAsNonRoot": True}),
    secured("root-by-number", {"runAsNonRoot": True, "runAsUser": 0}),
    secured("root-perhaps", {"runAsNonRoot": True}, image=APP),
    secured("group-alone", {"runAsGroup": 5}, image=APP),
    secured("strict-unknown", None, {"supplementalGroupsPolicy": "Strict"}, APP),
    secured("armoured", {"appArmorProfile": {"type": "Localhost", "localhostProfile": "podlane"}}),
    secured("unsafe", None, {"sysctls": [{"name": "kernel.msgmax", "value": "8192"}]}),
    secured("privileged", {"privileged": True}),
)


@pytest.fixture(scope="module")
def node() -> Iterator[SingleNode]:
    with SingleNode(docker=(f"--add-runtime={restricted_runc.NAME}={Path(restricted_runc.__file__)}",)) as running:
        add_image(running, APP, "USER app", files=FILES)
        (running.state / "seccomp/no").mkdir(parents=True)
        (running.state / "seccomp/no/directories.json").write_text(json.dumps(NO_DIRECTORIES))
        running.agent("--allowed-unsafe-sysctls=[net.core.*]", "--seccomp-default=false")
        running.kubectl(
            "apply", "-f", "-", stdin="".join((runtime_class(restricted_runc.NAME), *RUNNING.values(), *WAITING))
        )
        wait_running(running, *RUNNING)
        yield running


def of_process(node: SingleNode, name: str, key: str) -> str:
    """Return a line of the status of a process in the container."""
    lines = exec_output(node, name, "cat", "/proc/self/status").splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith(f"{key}:"))


def options(node: SingleNode, name: str) -> list[str]:
    actual: list[str] = inspect_container(node, name)["HostConfig"]["SecurityOpt"] or []
    return actual


def test_container_without_seccomp_setting_is_unconfined_if_the_node_says_so(node: SingleNode) -> None:
    assert options(node, "plain") == ["seccomp=unconfined"]
    assert of_process(node, "plain", "Seccomp") == "0"
    assert options(node, "of-docker") == []
    assert of_process(node, "of-docker", "Seccomp") == "2", "what the container says holds before what the pod says"
    assert of_process(node, "of-the-pod", "Seccomp") == "2"
    pause = inspect_container(node, "plain", SANDBOX)["State"]["Pid"]
    assert "Seccomp:\t2" in Path(f"/proc/{pause}/status").read_text(), "the sandbox has Docker's"


def test_localhost_seccomp_profile_is_enforced(node: SingleNode) -> None:
    assert of_process(node, "own-profile", "Seccomp") == "2"
    assert exec_fails(node, "own-profile", "mkdir", "/tmp/a")
    assert not exec_fails(node, "plain", "mkdir", "/tmp/a")
    assert "seccomp/none.json" in wait_waiting(node, "no-profile", "CreateContainerConfigError")


def test_container_has_users_and_groups_of_its_security_context(node: SingleNode) -> None:
    assert exec_output(node, "plain", "id", "-u").strip() == "0"
    assert inspect_container(node, "plain")["Config"]["User"] == "0"
    assert [exec_output(node, "who", "id", flag).strip() for flag in ("-u", "-g")] == ["1000", "3000"]
    assert set(exec_output(node, "who", "id", "-G").split()) == {"3000", "2000", "4000"}
    assert [exec_output(node, "who", "id", flag, container="other").strip() for flag in ("-u", "-g")] == ["1001", "0"]
    sandbox = inspect_container(node, "who", SANDBOX)
    assert (sandbox["Config"]["User"], sandbox["HostConfig"]["GroupAdd"]) == ("1000:3000", ["4000", "2000"])
    assert exec_output(node, "named", "id", "-un").strip() == "app"
    assert inspect_container(node, "named")["Config"]["User"] == "app"


def test_supplemental_groups_policy_merges_or_omits_image_groups(node: SingleNode) -> None:
    assert set(exec_output(node, "merged", "id", "-G").split()) == {"1000", "50000", "60000"}
    assert set(exec_output(node, "strict", "id", "-G").split()) == {"1000", "60000"}
    assert "needs runAsGroup" in wait_waiting(node, "strict-unknown", "CreateContainerConfigError")


def test_run_as_non_root_rejects_a_root_image(node: SingleNode) -> None:
    wanted = {
        "root": "container has runAsNonRoot and image will run as root",
        "root-by-number": "container's runAsUser breaks non-root policy",
        "root-perhaps": "image has non-numeric user (app), cannot verify user is non-root",
        "group-alone": "runAsGroup without runAsUser",
    }
    for name, why in wanted.items():
        assert why in wait_waiting(node, name, "CreateContainerConfigError")


def test_container_has_requested_capabilities_and_privileges(node: SingleNode) -> None:
    assert int(of_process(node, "small", "CapEff"), 16) == 1 << 10
    assert of_process(node, "small", "NoNewPrivs") == "1"
    assert exec_fails(node, "small", "touch", "/x")
    assert of_process(node, "plain", "NoNewPrivs") == "0"
    assert not exec_fails(node, "plain", "touch", "/x")
    host = inspect_container(node, "small")["HostConfig"]
    assert (host["CapAdd"], host["CapDrop"], host["ReadonlyRootfs"]) == (["NET_BIND_SERVICE"], ["ALL"], True)
    assert int(of_process(node, "mounter", "CapEff"), 16) >> 21 & 1
    assert not exec_fails(node, "mounter", "mount", "-t", "tmpfs", "tmpfs", "/tmp")


def test_proc_mount_masks_default_paths(node: SingleNode) -> None:
    shown = {name: exec_output(node, name, "cat", "/proc/mounts").splitlines() for name in MASKED}
    points = {name: {line.split()[1] for line in lines} for name, lines in shown.items()}
    hidden = {path for path in MASKED_PATHS if Path(path).exists()}
    assert hidden
    wanted = {"plain": hidden | {"/proc/sys"}, "unmasked": set(), "mighty": set()}
    assert {name: {*MASKED_PATHS, "/proc/sys"} & actual for name, actual in points.items()} == wanted
    host = inspect_container(node, "unmasked")["HostConfig"]
    assert (host["MaskedPaths"], host["ReadonlyPaths"]) == ([], [])
    host = inspect_container(node, "plain", SANDBOX)["HostConfig"]
    assert "/proc/interrupts" not in host["MaskedPaths"], "of the sandbox Docker decides"


def test_selinux_options_are_passed_to_docker(node: SingleNode) -> None:
    assert options(node, "labelled") == ["seccomp=unconfined", "label=level:s0:c1"]
    assert inspect_container(node, "labelled", SANDBOX)["HostConfig"]["SecurityOpt"] == [
        "no-new-privileges",
        "label=type:t",
    ]


def test_apparmor_profile_is_rejected_when_the_kernel_cannot_enforce_it(node: SingleNode) -> None:
    if Path("/sys/module/apparmor/parameters/enabled").exists():
        assert options(node, "armoured") == ["seccomp=unconfined", "apparmor=podlane"]
    else:
        assert "AppArmor is not enabled" in wait_waiting(node, "armoured", "CreateContainerConfigError")


def test_sysctls_apply_to_the_pod_only(node: SingleNode) -> None:
    path = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
    assert exec_output(node, "tuned", "cat", path).strip() == "80"
    assert Path(path).read_text().strip() != "80"
    assert inspect_container(node, "tuned", SANDBOX)["HostConfig"]["Sysctls"] == {
        "net.ipv4.ip_unprivileged_port_start": "80"
    }
    assert not inspect_container(node, "tuned")["HostConfig"].get("Sysctls")
    wait_until(lambda: node.status("unsafe").get("reason") == "SysctlForbidden", "unsafe is rejected")
    assert 'forbidden sysctl: "kernel.msgmax" not allowlisted' in node.status("unsafe")["message"]
    allowed = {"sysctls": [{"name": "net.core.somaxconn", "value": "777"}]}
    node.kubectl("apply", "-f", "-", stdin=secured("allowed", None, allowed))
    wait_running(node, "allowed")
    assert exec_output(node, "allowed", "cat", "/proc/sys/net/core/somaxconn").strip() == "777"


def test_privileged_container_has_the_machines_devices_and_capabilities(node: SingleNode) -> None:
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    assert int(of_process(node, "mighty", "CapEff"), 16) & KNOWN == int(own.split()[1], 16) & KNOWN
    assert of_process(node, "mighty", "Seccomp") == "0"
    if restricted_runc.lacks_sys_resource():
        assert "operation not permitted" in wait_waiting(node, "privileged", "RunContainerError")
    else:
        wait_running(node, "privileged")


def test_bidirectional_mount_reaches_the_host_and_the_pod(node: SingleNode) -> None:
    exec_output(node, "mighty", "mkdir", "/v/in")
    exec_output(node, "mighty", "mount", "-t", "tmpfs", "tmpfs", "/v/in")
    directory = pod_dir(node, "mighty") / "volumes/kubernetes.io~empty-dir/v/in"
    assert directory.is_mount()
    assert " /v/in " in exec_output(node, "mighty", "cat", "/proc/mounts", container="follower")
    assert " /v/in " not in exec_output(node, "mighty", "cat", "/proc/mounts", container="loner")
    modes = {name: inspect_container(node, "mighty", name)["Mounts"] for name in ("main", "follower", "loner")}
    actual = {
        name: [mount["Propagation"] for mount in rows if mount["Destination"] == "/v"] for name, rows in modes.items()
    }
    assert actual == {"main": ["rshared"], "follower": ["rslave"], "loner": ["rprivate"]}
    node.kubectl("delete", "pod", "mighty", "--timeout=30s")
    wait_until(lambda: not directory.exists(), "the mount has gone with the pod")


def test_oom_score_adj_is_as_low_as_the_machine_allows(node: SingleNode) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    least = own if restricted_runc.lacks_sys_resource() else -1000
    scores = {
        name: inspect_container(node, *name)["HostConfig"]["OomScoreAdj"]
        for name in (("plain", SANDBOX), ("guaranteed", "main"))
    }
    assert scores == {("plain", SANDBOX): max(-998, least), ("guaranteed", "main"): max(-997, least)}
    assert inspect_container(node, "plain")["HostConfig"]["OomScoreAdj"] == 1000


def test_containers_have_dockers_seccomp_profile_and_few_processes_by_default(node: SingleNode) -> None:
    node.agent()
    node.kubectl("apply", "-f", "-", stdin=secured("later") + secured("none", profile("Unconfined")))
    wait_running(node, "later", "none")
    assert of_process(node, "later", "Seccomp") == "2"
    assert of_process(node, "none", "Seccomp") == "0"
    assert container_status(node, "plain")["restartCount"] == 0, "what runs stays as it is"
    group = inspect_container(node, "later")["HostConfig"]["CgroupParent"]
    limits = [Path(f"{root}{group}/pids.max") for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")]
    assert [limit.read_text() for limit in limits if limit.exists()] == ["4096\n"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (unrestricted("wrong", container(**mounting("Bidirectional")), volumes=EMPTY), "is for privileged containers"),
        (unrestricted("wrong", hostUsers=False), "spec.hostUsers"),
        (secured("wrong", {"privileged": True, "allowPrivilegeEscalation": False}), "allowPrivilegeEscalation"),
    ],
)
def test_unsupported_security_contexts_are_rejected(node: SingleNode, wrong: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        node.kubectl("apply", "-f", "-", stdin=wrong)
