"""The checks of the Pod Security Standards: what each forbids, from which version on, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.pod import Pod
from api.meta.schema import without_nulls
from master.admission.pod_security.checks import BASELINE, LATEST, PRIVILEGED, RESTRICTED, CheckedPod, violations

COMPLIANT = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A container that `restricted` allows."""


def subject(
    spec: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    **container: Any,
) -> CheckedPod:
    """Return a pod of one container `a` that `restricted` allows, with changes."""
    own = {key: value for key, value in {**COMPLIANT, **(context or {})}.items() if value is not None}
    document = {
        "metadata": {"name": "p", "annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "a", "image": "i", "securityContext": own, **container}], **(spec or {})},
    }
    pod = msgspec.convert(without_nulls(document), Pod)
    return CheckedPod(pod.metadata.annotations, pod.spec)


def two(context_a: Mapping[str, Any], context_b: Mapping[str, Any]) -> CheckedPod:
    containers = [
        {"name": name, "image": "i", "securityContext": {**COMPLIANT, **context}}
        for name, context in (("a", context_a), ("b", context_b))
    ]
    return subject({"containers": containers})


def pod_context(**context: Any) -> Mapping[str, Any]:
    return {"securityContext": context}


APPARMOR = "container.apparmor.security.beta.kubernetes.io/a"
BOTH, ONLY_RESTRICTED = (BASELINE, RESTRICTED), (RESTRICTED,)

FORBIDDEN: Mapping[str, tuple[CheckedPod, tuple[str, ...], str]] = {
    "AppArmor profile": (
        subject(context={"appArmorProfile": {"type": "Unconfined"}}), BOTH,
        'forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")',
    ),
    "AppArmor annotation": (
        subject(annotations={APPARMOR: "unconfined"}), BOTH,
        f'forbidden AppArmor profile (annotation {APPARMOR}="unconfined")',
    ),
    "capability, baseline": (
        subject(context={"capabilities": {"add": ["SYS_TIME", "NET_ADMIN", "CHOWN"], "drop": ["ALL"]}}), (BASELINE,),
        'non-default capabilities (container "a" must not include "NET_ADMIN", "SYS_TIME" in '
        "securityContext.capabilities.add)",
    ),
    "capability, restricted": (
        subject(context={"capabilities": {"add": ["CHOWN"]}}), ONLY_RESTRICTED,
        'unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]; container "a" '
        'must not include "CHOWN" in securityContext.capabilities.add)',
    ),
    "capabilities not dropped": (
        subject(context={"capabilities": None}), ONLY_RESTRICTED,
        'unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"])',
    ),
    "capabilities dropped by another text": (
        subject(context={"capabilities": {"drop": ["all"]}}), ONLY_RESTRICTED,
        'unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"])',
    ),
    "namespaces of the host": (
        subject({"hostNetwork": True, "hostPID": True, "hostIPC": True}), BOTH,
        "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
    ),
    "hostPath, baseline": (
        subject({"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]}),
        (BASELINE,), 'hostPath volumes (volumes "v", "w")',
    ),
    "hostPath, restricted": (
        subject({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), ONLY_RESTRICTED,
        'restricted volume types (volume "v" uses restricted volume type "hostPath")',
    ),
    "nfs and hostPath": (
        subject({"volumes": [
            {"name": "v", "nfs": {"server": "s", "path": "/"}}, {"name": "w", "hostPath": {"path": "/"}},
        ]}), ONLY_RESTRICTED,
        'restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")',
    ),
    "host port": (
        subject(ports=[{"containerPort": 1, "hostPort": 80}]), BOTH, 'hostPort (container "a" uses hostPort 80)',
    ),
    "host of a probe": (
        subject(livenessProbe={"httpGet": {"port": 1, "host": "1.2.3.4"}}), BOTH,
        'probe or lifecycle host (container "a" uses probe or lifecycle host "1.2.3.4")',
    ),
    "host of a hook": (
        subject(lifecycle={"preStop": {"tcpSocket": {"port": 1, "host": "x"}}}), BOTH,
        'probe or lifecycle host (container "a" uses probe or lifecycle host "x")',
    ),
    "privileged": (
        subject(context={"privileged": True}), BOTH,
        'privileged (container "a" must not set securityContext.privileged=true)',
    ),
    "two privileged": (
        two({"privileged": True}, {"privileged": True}), BOTH,
        'privileged (containers "a", "b" must not set securityContext.privileged=true)',
    ),
    "procMount": (
        subject(context={"procMount": "Unmasked"}), BOTH,
        'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
    ),
    "SELinux type": (
        subject(context={"seLinuxOptions": {"type": "x", "user": "u", "role": "r"}}), BOTH,
        'seLinuxOptions (container "a" set forbidden securityContext.seLinuxOptions: type "x"; user may not be set; '
        "role may not be set)",
    ),
    "SELinux user of the pod": (
        subject(pod_context(seLinuxOptions={"user": "u"})), BOTH,
        "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set)",
    ),
    "seccomp": (
        subject(context={"seccompProfile": {"type": "Unconfined"}}), BOTH,
        'seccompProfile (container "a" must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    "seccomp of the pod": (
        subject(pod_context(seccompProfile={"type": "Unconfined"})), BOTH,
        'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    "seccomp is missing": (
        subject(context={"seccompProfile": None}), ONLY_RESTRICTED,
        'seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
        '"Localhost")',
    ),
    "sysctl": (
        subject(pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}])), BOTH,
        "forbidden sysctls (kernel.msgmax)",
    ),
    "privilege escalation": (
        subject(context={"allowPrivilegeEscalation": None}), ONLY_RESTRICTED,
        'allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false)',
    ),
    "root is possible": (
        subject(context={"runAsNonRoot": None}), ONLY_RESTRICTED,
        'runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)',
    ),
    "root is wanted": (
        subject(context={"runAsNonRoot": False}), ONLY_RESTRICTED,
        'runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false)',
    ),
    "root": (subject(pod_context(runAsUser=0)), ONLY_RESTRICTED, "runAsUser=0 (pod must not set runAsUser=0)"),
}  # fmt: skip


def texts(of: CheckedPod, level: str, version: int = LATEST) -> list[str]:
    return [str(violation) for violation in violations(of, level, version)]


@pytest.mark.parametrize("case", FORBIDDEN)
def test_level_forbids(case: str) -> None:
    found, levels, text = FORBIDDEN[case]
    for level in (BASELINE, RESTRICTED):
        assert (texts(found, level) == [text]) == (level in levels)
    assert texts(found, PRIVILEGED) == []


ALLOWED: Mapping[str, CheckedPod] = {
    "nothing special": subject(),
    "settings of the pod": subject(
        pod_context(runAsNonRoot=True, seccompProfile={"type": "Localhost", "localhostProfile": "p"}),
        {"runAsNonRoot": None, "seccompProfile": None},
    ),
    "low ports": subject(context={"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}),
    "probes of the pod itself": subject(livenessProbe={"tcpSocket": {"port": 1, "host": "127.0.0.1"}}),
    "SELinux types": two(
        {"seLinuxOptions": {"type": "container_t", "level": "s0"}}, {"seLinuxOptions": {"type": "container_engine_t"}}
    ),
    "safe sysctl": subject(pod_context(sysctls=[{"name": "net.ipv4.tcp_rmem", "value": "1"}])),
    "volumes": subject({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "s"}}]}),
    "AppArmor": subject(annotations={APPARMOR: "localhost/x"}, context={"appArmorProfile": {"type": "RuntimeDefault"}}),
    "root in a user namespace": subject(
        {"hostUsers": False}, {"runAsNonRoot": None, "runAsUser": 0, "procMount": "Unmasked"}
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_restricted_allows(case: str) -> None:
    assert texts(ALLOWED[case], RESTRICTED) == []
    assert texts(ALLOWED[case], BASELINE) == []


@pytest.mark.parametrize(
    ("level", "found", "since"),
    [
        (RESTRICTED, subject(context={"capabilities": None}), 22),
        (RESTRICTED, subject(context={"runAsUser": 0}), 23),
        (BASELINE, FORBIDDEN["host of a probe"][0], 34),
    ],
)
def test_check_applies_from_its_version_on(level: str, found: CheckedPod, since: int) -> None:
    assert texts(found, level, since - 1) == []
    assert texts(found, level, since) != []


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (subject(pod_context(sysctls=[{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}])), 27),
        (subject(pod_context(sysctls=[{"name": "net.ipv4.tcp_fin_timeout", "value": "1"}])), 29),
        (subject(context={"seLinuxOptions": {"type": "container_engine_t"}}), 31),
        (subject(pod_context(sysctls=[{"name": "net.ipv4.tcp_wmem", "value": "1"}])), 32),
        (subject({"hostUsers": False}, {"procMount": "Unmasked"}), 35),
        (subject(pod_context(sysctls=[{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}])), 37),
    ],
)
def test_setting_is_allowed_from_its_version_on(found: CheckedPod, since: int) -> None:
    assert texts(found, BASELINE, since - 1) != []
    assert texts(found, BASELINE, since) == []


def test_init_and_ephemeral_containers_count() -> None:
    bad = {"name": "x", "image": "i", "securityContext": {"privileged": True}}
    for field in ("initContainers", "ephemeralContainers"):
        (text,) = texts(subject({field: [bad]}), BASELINE)
        assert text == 'privileged (container "x" must not set securityContext.privileged=true)'


def test_violations_are_in_the_order_of_the_checks() -> None:
    found = subject({"hostNetwork": True}, {"privileged": True, "allowPrivilegeEscalation": None, "runAsUser": 0})
    reasons = [violation.reason for violation in violations(found, RESTRICTED, LATEST)]
    assert reasons == ["host namespaces", "privileged", "allowPrivilegeEscalation != false", "runAsUser=0"]


@given(st.sampled_from([*FORBIDDEN]), st.sampled_from([*ALLOWED]), st.integers(0, 40))
def test_restricted_forbids_what_baseline_forbids(forbidden: str, allowed: str, version: int) -> None:
    for found in (FORBIDDEN[forbidden][0], ALLOWED[allowed]):
        if texts(found, BASELINE, version) and version >= 22:
            assert texts(found, RESTRICTED, version)
