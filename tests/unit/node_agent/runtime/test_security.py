"""Translation of security contexts to Docker options."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Container, Pod
from api.meta.schema import FieldError
from api.validation.containers import check_container_security, check_pod_security
from api.validation.registry import decode
from node_agent.config import Settings
from node_agent.runtime.security import (
    MASKED_PATHS,
    SecurityInputs,
    SecurityOptions,
    container_security,
    forbidden_sysctl,
    sandbox_security,
    sysctls,
)
from reconcile.config_file import InvalidConfig, merge
from reconcile.errors import Refused


def make_secured_pod(
    container_context: dict[str, Any] | None = None, pod_context: dict[str, Any] | None = None, **spec: Any
) -> Pod:
    container = {"name": "main", "image": "i:1", "securityContext": container_context or {}}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "red", "uid": "u"},
        "spec": {"containers": [container], "securityContext": pod_context or {}} | spec,
    }
    pod, problems, _ = decode(Pod, document)
    assert pod is not None, problems
    return pod


def security_of(
    container_context: dict[str, Any] | None = None, pod_context: dict[str, Any] | None = None, **inputs: Any
) -> SecurityOptions:
    pod = make_secured_pod(container_context, pod_context)
    return container_security(pod, pod.spec.containers[0], SecurityInputs(**inputs))


@pytest.mark.parametrize(
    ("container_context", "pod_context", "image", "user"),
    [
        ({}, {}, "", "0"),
        ({}, {}, "1000", "1000"),
        ({}, {}, "1000:1001", "1000:1001"),
        ({}, {}, "app", "app"),
        ({}, {"runAsUser": 5}, "1000", "5"),
        ({"runAsUser": 0}, {"runAsUser": 5}, "1000", "0"),
        ({"runAsGroup": 7}, {"runAsUser": 5, "runAsGroup": 6}, "", "5:7"),
        ({"runAsGroup": 7}, {}, "1000:1001", "1000:7"),
        ({"runAsNonRoot": True}, {}, "1000", "1000"),
        ({"runAsNonRoot": False}, {"runAsNonRoot": True}, "", "0"),
    ],
)
def test_container_user_and_groups_follow_the_security_contexts(
    container_context: dict[str, Any], pod_context: dict[str, Any], image: str, user: str
) -> None:
    assert security_of(container_context, pod_context, image_user=image).user == user


@pytest.mark.parametrize(
    ("container_context", "image", "why"),
    [
        ({"runAsUser": 0}, "1000", "container's runAsUser breaks non-root policy"),
        ({}, "", "container has runAsNonRoot and image will run as root"),
        ({}, "0:0", "container has runAsNonRoot and image will run as root"),
        ({}, "app", r"non-numeric user \(app\), cannot verify user is non-root"),
    ],
)
def test_run_as_non_root_rejects_root(container_context: dict[str, Any], image: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        security_of({"runAsNonRoot": True} | container_context, image_user=image)
    assert '(pod: "web_red(u)", container: main)' in str(caught.value)


def test_run_as_group_needs_a_numeric_user() -> None:
    with pytest.raises(Refused, match="runAsGroup without runAsUser"):
        security_of({"runAsGroup": 7}, image_user="app")


def test_capabilities_and_privileges_follow_the_security_context() -> None:
    container_context = {
        "capabilities": {"add": ["CAP_NET_ADMIN", "SYS_TIME"], "drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "procMount": "Unmasked",
        "seLinuxOptions": {"level": "s0:c1", "type": "t"},
    }
    security = security_of(container_context, {"supplementalGroups": [3, 4], "fsGroup": 4})
    assert (security.cap_add, security.cap_drop, security.read_only) == (("NET_ADMIN", "SYS_TIME"), ("ALL",), True)
    assert (security.masked_paths, security.groups, security.privileged) == ((), (3, 4), False)
    assert security_of().masked_paths == MASKED_PATHS
    assert security_of({"privileged": True}).masked_paths is None, "Docker hides nothing from the privileged"
    assert security.options == ("no-new-privileges", "seccomp=unconfined", "label=type:t", "label=level:s0:c1")
    assert security_of({"privileged": True}).privileged


@pytest.mark.parametrize(
    ("container_context", "pod_context", "options"),
    [
        (None, None, ("seccomp=unconfined",)),
        ("RuntimeDefault", "Unconfined", ()),
        (None, "Unconfined", ("seccomp=unconfined", "apparmor=unconfined")),
        ("Localhost", None, ("seccomp={}", "apparmor=p")),
    ],
)
def test_seccomp_profiles_translate_to_docker_options(
    container_context: str | None, pod_context: str | None, options: tuple[str, ...]
) -> None:
    def profiles(kind: str | None) -> dict[str, Any]:
        if kind is None:
            return {}
        profile = {"type": kind} | ({"localhostProfile": "p"} if kind == "Localhost" else {})
        return {"seccompProfile": profile, "appArmorProfile": profile}

    assert (
        security_of(profiles(container_context), profiles(pod_context), seccomp="{}", apparmor=True).options == options
    )


def test_seccomp_default_applies_dockers_profile() -> None:
    assert security_of(seccomp_default=True).options == ()
    assert security_of({"seccompProfile": {"type": "Unconfined"}}, seccomp_default=True).options == (
        "seccomp=unconfined",
    )


@pytest.mark.parametrize(
    ("pod_context", "image", "user"),
    [
        ({}, "", "0:0"),
        ({}, "1000:7", "1000:7"),
        ({"runAsUser": 0}, "app", "0:0"),
        ({"runAsUser": 5, "runAsGroup": 6}, "", "5:6"),
    ],
)
def test_strict_supplemental_groups_policy_excludes_image_groups(
    pod_context: dict[str, Any], image: str, user: str
) -> None:
    strict = {"supplementalGroupsPolicy": "Strict", "supplementalGroups": [9]}
    security = security_of({}, pod_context | strict, image_user=image)
    assert (security.user, security.groups) == (user, (9,))


@pytest.mark.parametrize(("pod_context", "image"), [({}, "1000"), ({}, "app"), ({"runAsUser": 5}, "7:7")])
def test_strict_supplemental_groups_policy_needs_a_group(pod_context: dict[str, Any], image: str) -> None:
    with pytest.raises(Refused, match="needs runAsGroup"):
        security_of({}, pod_context | {"supplementalGroupsPolicy": "Strict"}, image_user=image)


def test_unenforceable_apparmor_profile_is_rejected() -> None:
    with pytest.raises(Refused, match="AppArmor is not enabled"):
        security_of({"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}})


def test_sandbox_runs_as_the_pods_user_without_privileges() -> None:
    pod = make_secured_pod(
        pod_context={"runAsUser": 5, "runAsGroup": 6, "sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}
    )
    assert sandbox_security(pod) == SecurityOptions(user="5:6", options=("no-new-privileges",))
    assert sysctls(pod) == (("kernel.shm_rmid_forced", "1"),)
    assert forbidden_sysctl(pod) == ""


def test_pod_with_a_user_namespace_is_rejected() -> None:
    assert wrong(hostUsers=False) == ["spec.hostUsers"]
    pod = make_secured_pod()
    with pytest.raises(Refused, match="hostUsers false"):
        sandbox_security(replace(pod, spec=replace(pod.spec, host_users=False)))


@pytest.mark.parametrize(
    ("name", "spec", "why"),
    [
        ("kernel.msgmax", {}, 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
        ("net.ipv4.tcp_rmem", {"hostNetwork": True}, "not allowed with host net enabled"),
        ("kernel.shm_rmid_forced", {"hostIPC": True}, "not allowed with host ipc enabled"),
    ],
)
def test_host_sysctls_are_rejected(name: str, spec: dict[str, Any], why: str) -> None:
    assert why in forbidden_sysctl(make_secured_pod(pod_context={"sysctls": [{"name": name, "value": "1"}]}, **spec))


@pytest.mark.parametrize(
    ("name", "allowed", "why"),
    [
        ("kernel.msgmax", ("kernel.msgmax",), ""),
        ("kernel.msgmax", ("kernel.msg*",), ""),
        ("net/core/somaxconn", ("net.*",), ""),
        ("net.core.somaxconn", ("net.core.somaxcon",), "not allowlisted"),
        ("net.core.somaxconn", ("kernel.sem", "net.ipv4.*"), "not allowlisted"),
    ],
)
def test_configured_unsafe_sysctls_are_accepted(name: str, allowed: tuple[str, ...], why: str) -> None:
    result = forbidden_sysctl(make_secured_pod(pod_context={"sysctls": [{"name": name, "value": "1"}]}), allowed)
    assert why in result if why else not result


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("net.*", True), ("net.core.somaxconn", True), ("kernel.msg*", True), ("kernel.sem", True), ("fs.mqueue.*", True),
     ("*", False), ("kernel.panic", False), ("kernel.*", False), ("vm.swappiness", False), ("net.*.x", False)],
)  # fmt: skip
def test_only_namespaced_sysctls_can_be_configured(name: str, accepted: bool) -> None:
    document = {"nodeName": "n", "nodeIp": "192.0.2.1", "allowedUnsafeSysctls": [name]}
    with nullcontext() if accepted else pytest.raises(InvalidConfig, match="allowedUnsafeSysctls"):
        merge(Settings, document, {})


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ({"fsGroup": -1}, "fsGroup"),
        ({"supplementalGroups": [1, 1 << 31]}, "supplementalGroups[1]"),
        ({"supplementalGroupsPolicy": "Lax"}, "supplementalGroupsPolicy"),
        ({"seccompProfile": {"type": "Localhost"}}, "seccompProfile.localhostProfile"),
        ({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}, "seccompProfile.localhostProfile"),
        ({"appArmorProfile": {"type": "Strict"}}, "appArmorProfile.type"),
        ({"sysctls": [{"name": "a.b", "value": "1"}, {"name": "a/b", "value": "2"}]}, "sysctls[1].name"),
        ({"sysctls": [{"name": "A b", "value": "1"}]}, "sysctls[0].name"),
        ({"fsGroupChangePolicy": "Never"}, "fsGroupChangePolicy"),
    ],
)
def test_invalid_pod_security_context_is_rejected_by_path(context: dict[str, Any], path: str) -> None:
    assert wrong(securityContext=context) == [f"spec.securityContext.{path}"]


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ({"allowPrivilegeEscalation": False, "privileged": True}, "allowPrivilegeEscalation"),
        ({"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"]}}, "allowPrivilegeEscalation"),
        ({"capabilities": {"drop": ["net admin"]}}, "capabilities.drop[0]"),
        ({"procMount": "None"}, "procMount"),
    ],
)
def test_invalid_container_security_context_is_rejected_by_path(context: dict[str, Any], path: str) -> None:
    container = {"name": "a", "image": "b:1", "securityContext": context}
    assert wrong(containers=[container]) == [f"spec.containers[0].securityContext.{path}"]


def wrong(**spec: Any) -> list[str]:
    base = {"containers": [{"name": "a", "image": "b:1"}]}
    return [error.path for error in decode(Pod, {"metadata": {"name": "p"}, "spec": base | spec})[1]]


def test_missing_security_context_is_valid() -> None:
    result: list[FieldError] = [*check_container_security("c", None), *check_pod_security("p", None)]
    assert not result
    assert Container(name="a").security_context is None
