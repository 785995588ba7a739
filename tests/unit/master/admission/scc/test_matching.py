"""Which SCC admits a pod, what it fills in, and what it refuses, as measured on OpenShift's own admission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.types import ObjectMeta
from master.admission.scc.matching import annotate, decide, try_scc
from master.admission.scc.namespace_ranges import BadNamespaceRanges, parse_ranges
from master.admission.scc.order import permissiveness, sort_sccs
from master.admission.scc.provider import MutablePart
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.resources.security_context_constraints import (
    SECURITY_CONTEXT_CONSTRAINTS,
    AllowedFlexVolume,
    GroupStrategy,
    IDRange,
    RunAsUserStrategy,
    SecurityContextConstraints,
    SELinuxContextStrategy,
)
from tests.unit.master.admission.scc.examples import ANNOTATIONS, BY_NAME, RANGES, contexts, pod, secured, usable

USER = ("restricted-v2",)
ADMIN = tuple(BY_NAME)

LEVEL = {"seLinuxOptions": {"level": "s0:c26,c15"}}
RUNTIME = {"seccompProfile": {"type": "RuntimeDefault"}}
F2_POD = {"fsGroup": 1000680000, **LEVEL, **RUNTIME}
F2_CONTAINER = {
    "runAsUser": 1000680000,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
OLD_DROPS = ["KILL", "MKNOD", "SETGID", "SETUID"]


def without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def volume(**source: Any) -> Pod:
    return pod({"volumes": [{"name": "v", **source}]})


HOST_PATH = volume(hostPath={"path": "/"})
HOST_PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}

ADMITTED: Mapping[str, tuple[Pod, Sequence[str], Sequence[str], str, str, Mapping[str, Any], Mapping[str, Any]]] = {
    "plain, user": (pod(), USER, (), "restricted-v2", "user", F2_POD, F2_CONTAINER),
    "plain, administrator": (pod(), ADMIN, (), "anyuid", "user", LEVEL, {"capabilities": {"drop": ["MKNOD"]}}),
    "plain, account": (
        pod(), USER, ("anyuid",), "anyuid", "serviceaccount", LEVEL, {"capabilities": {"drop": ["MKNOD"]}},
    ),
    "user 0, account": (
        secured(context={"runAsUser": 0}), USER, ("anyuid",), "anyuid", "serviceaccount", LEVEL,
        {"runAsUser": 0, "capabilities": {"drop": ["MKNOD"]}},
    ),
    "user ID of the pod": (
        secured({"runAsUser": 1000680123}), USER, (), "restricted-v2", "user", {"runAsUser": 1000680123, **F2_POD},
        without(F2_CONTAINER, "runAsUser"),
    ),
    "last user ID of the block": (
        secured(context={"runAsUser": 1000689999}), USER, (), "restricted-v2", "user", F2_POD,
        {**F2_CONTAINER, "runAsUser": 1000689999},
    ),
    "host network": (
        pod({"hostNetwork": True}, HOST_PORT), USER, ("hostnetwork-v2",), "hostnetwork-v2", "serviceaccount",
        {**F2_POD, "supplementalGroups": [1000680000]}, F2_CONTAINER,
    ),
    "privileged, administrator": (
        secured(context={"privileged": True}), ADMIN, (), "privileged", "user", {}, {"privileged": True},
    ),
    "privileged, account": (
        secured(context={"privileged": True}), USER, ("privileged",), "privileged", "serviceaccount", {},
        {"privileged": True},
    ),
    "host directory": (
        HOST_PATH, USER, ("hostmount-anyuid",), "hostmount-anyuid", "serviceaccount", LEVEL,
        {"capabilities": {"drop": ["MKNOD"]}},
    ),
    "capability that may be added": (
        secured(context={"capabilities": {"add": ["NET_BIND_SERVICE"]}}), USER, (), "restricted-v2", "user", F2_POD,
        {**F2_CONTAINER, "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
    ),
    "first group of the block": (
        secured({"fsGroup": 1000680000}), USER, (), "restricted-v2", "user", F2_POD, F2_CONTAINER,
    ),
    "supplemental groups": (
        secured({"supplementalGroups": [5555]}), USER, (), "restricted-v2", "user",
        {**F2_POD, "supplementalGroups": [5555]}, F2_CONTAINER,
    ),
    "privilege escalation": (
        secured(context={"allowPrivilegeEscalation": True}), (*USER, "restricted"), (), "restricted", "user",
        without(F2_POD, "seccompProfile"),
        {**F2_CONTAINER, "allowPrivilegeEscalation": True, "capabilities": {"drop": OLD_DROPS}},
    ),
    "any user but root": (
        secured({"runAsUser": 5000}), (), ("nonroot-v2",), "nonroot-v2", "serviceaccount",
        {"runAsUser": 5000, **LEVEL, **RUNTIME}, without(F2_CONTAINER, "runAsUser"),
    ),
    "not root, group 77": (
        secured({"runAsNonRoot": True, "fsGroup": 77}), (), ("nonroot-v2",), "nonroot-v2", "serviceaccount",
        {"runAsNonRoot": True, "fsGroup": 77, **LEVEL, **RUNTIME},
        without(F2_CONTAINER, "runAsUser", "runAsNonRoot"),
    ),
    "safe sysctl": (
        secured({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}), USER, (), "restricted-v2", "user",
        {**F2_POD, "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}, F2_CONTAINER,
    ),
    "categories in another order": (
        secured({"seLinuxOptions": {"level": "s0:c15,c26"}}), USER, (), "restricted-v2", "user",
        {**F2_POD, "seLinuxOptions": {"level": "s0:c15,c26"}}, F2_CONTAINER,
    ),
    "drop all in lower case": (
        secured(context={"capabilities": {"drop": ["all"]}}), USER, (), "restricted-v2", "user", F2_POD,
        {**F2_CONTAINER, "capabilities": {"drop": ["ALL", "all"]}},
    ),
    "priority before restriction": (
        pod(), ("restricted", "anyuid", "privileged"), (), "anyuid", "user", LEVEL,
        {"capabilities": {"drop": ["MKNOD"]}},
    ),
    "namespaces of the host": (
        pod({"hostPID": True, "hostIPC": True}), USER, ("hostaccess",), "hostaccess", "serviceaccount",
        without(F2_POD, "seccompProfile"),
        {**without(F2_CONTAINER, "allowPrivilegeEscalation"), "capabilities": {"drop": OLD_DROPS}},
    ),
    "runAsNonRoot false": (
        secured({"runAsNonRoot": False}), USER, (), "restricted-v2", "user", {**F2_POD, "runAsNonRoot": False},
        without(F2_CONTAINER, "runAsNonRoot"),
    ),
    "annotation of the user": (
        pod(annotations={"openshift.io/scc": "privileged"}), USER, (), "restricted-v2", "user", F2_POD, F2_CONTAINER,
    ),
    "capability of the kernel": (
        secured(context={"capabilities": {"add": ["SYS_ADMIN"]}}), ADMIN, (), "privileged", "user", {},
        {"capabilities": {"add": ["SYS_ADMIN"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "user", "account", "name", "subject", "pod_context", "context"), ADMITTED.values(), ids=ADMITTED
)
def test_first_usable_scc_that_fits_admits_a_pod_and_fills_it(
    wanted: Pod,
    user: Sequence[str],
    account: Sequence[str],
    name: str,
    subject: str,
    pod_context: Mapping[str, Any],
    context: Mapping[str, Any],
) -> None:
    trial = decide(wanted, BOOTSTRAP_SCCS, RANGES, usable(user, account)).admitted
    assert trial is not None
    assert (trial.scc.metadata.name, trial.subject) == (name, subject)
    assert contexts(trial.pod) == (pod_context, context)
    annotations = annotate(trial).metadata.annotations
    assert annotations["openshift.io/scc"] == name
    assert annotations["security.openshift.io/validated-scc-subject-type"] == subject
    assert annotations.get("seccomp.security.alpha.kubernetes.io/pod") == (
        "runtime/default" if "seccompProfile" in pod_context else None
    )


V2 = "provider restricted-v2: "
REFUSED: Mapping[str, tuple[Pod, Sequence[str], Sequence[str]]] = {
    "user 0": (
        secured(context={"runAsUser": 0}), USER,
        (f"{V2}.containers[0].runAsUser: Invalid value: 0: must be in the ranges: [1000680000, 1000689999]",),
    ),
    "user ID after the block": (
        secured(context={"runAsUser": 1000690000}), USER,
        (f"{V2}.containers[0].runAsUser: Invalid value: 1000690000: must be in the ranges: [1000680000, 1000689999]",),
    ),
    "host network": (
        pod({"hostNetwork": True}), USER,
        (
            f"{V2}.spec.securityContext.hostNetwork: Invalid value: true: Host network is not allowed to be used",
            f"{V2}.containers[0].hostNetwork: Invalid value: true: Host network is not allowed to be used",
        ),
    ),
    "host port": (
        pod({}, HOST_PORT), USER,
        (f"{V2}.containers[0].containers[0].hostPort: Invalid value: 80: Host ports are not allowed to be used",),
    ),
    "host directory": (
        HOST_PATH, USER, ('spec.volumes[0]: Invalid value: "hostPath": hostPath volumes are not allowed to be used',),
    ),
    "NFS": (
        volume(nfs={"server": "s", "path": "/"}), USER,
        ('spec.volumes[0]: Invalid value: "nfs": nfs volumes are not allowed to be used',),
    ),
    "capability": (
        secured(context={"capabilities": {"add": ["NET_ADMIN"]}}), USER,
        (f'{V2}.containers[0].capabilities.add: Invalid value: "NET_ADMIN": capability may not be added',),
    ),
    "second group of the block": (
        secured({"fsGroup": 1000680001}), USER,
        (
            f"{V2}.spec.securityContext.fsGroup: Invalid value: []int64{{1000680001}}: "
            "1000680001 is not an allowed group",
        ),
    ),
    "no seccomp": (
        secured({"seccompProfile": {"type": "Unconfined"}}), USER,
        (
            "pod.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: Forbidden: "
            "unconfined is not an allowed seccomp profile. Valid values are [runtime/default]",
            "pod.metadata.annotations[container.seccomp.security.alpha.kubernetes.io/a]: Forbidden: "
            "unconfined is not an allowed seccomp profile. Valid values are [runtime/default]",
        ),
    ),
    "seccomp profile of a file": (
        secured({"seccompProfile": {"type": "Localhost", "localhostProfile": "mine.json"}}), USER,
        (
            "pod.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: Forbidden: "
            "localhost/mine.json is not an allowed seccomp profile. Valid values are [runtime/default]",
            "pod.metadata.annotations[container.seccomp.security.alpha.kubernetes.io/a]: Forbidden: "
            "localhost/mine.json is not an allowed seccomp profile. Valid values are [runtime/default]",
        ),
    ),
    "privilege escalation": (
        secured(context={"allowPrivilegeEscalation": True}), USER,
        (
            f"{V2}.containers[0].allowPrivilegeEscalation: Invalid value: true: "
            "Allowing privilege escalation for containers is not allowed",
        ),
    ),
    "unsafe sysctl": (
        secured({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), USER,
        ('pod.spec.securityContext.sysctls[0]: Forbidden: unsafe sysctl "kernel.msgmax" is not allowed',),
    ),
    "other level": (
        secured({"seLinuxOptions": {"level": "s0:c1,c2"}}), USER,
        (
            f'{V2}.spec.securityContext.seLinuxOptions.level: Invalid value: "s0:c1,c2": must be s0:c26,c15',
            f'{V2}.containers[0].seLinuxOptions.level: Invalid value: "s0:c1,c2": must be s0:c26,c15',
        ),
    ),
    "raw sockets on the host network": (
        pod({"hostNetwork": True}, {"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}),
        ("hostnetwork-v2", "hostnetwork"),
        (
            'provider hostnetwork-v2: .containers[0].capabilities.add: Invalid value: "NET_RAW": '
            "capability may not be added",
            'provider hostnetwork: .containers[0].capabilities.add: Invalid value: "NET_RAW": '
            "capability may not be added",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "user", "texts"), REFUSED.values(), ids=REFUSED)
def test_pod_that_fits_no_usable_scc_is_refused_with_every_reason(
    wanted: Pod, user: Sequence[str], texts: Sequence[str]
) -> None:
    decision = decide(wanted, BOOTSTRAP_SCCS, RANGES, usable(user))
    assert decision.admitted is None
    unusable = {
        f'provider "{name}": Forbidden: not usable by user or serviceaccount' for name in BY_NAME if name not in user
    }
    found = list(map(str, decision.violations))
    assert [text for text in found if text not in unusable] == list(texts)
    assert unusable <= set(found)


def test_own_scc_fills_every_field_that_it_requires() -> None:
    own = SECURITY_CONTEXT_CONSTRAINTS.rules.default(
        SecurityContextConstraints(
            metadata=ObjectMeta(name="own"),
            run_as_user=RunAsUserStrategy(type="MustRunAs", uid=1234),
            se_linux_context=SELinuxContextStrategy(type="RunAsAny"),
            supplemental_groups=GroupStrategy(type="MustRunAs", ranges=(IDRange(min=5, max=6), IDRange(min=9, max=9))),
            read_only_root_filesystem=True,
            default_add_capabilities=("NET_RAW",),
            required_drop_capabilities=("MKNOD",),
        )
    )
    trial = try_scc(pod(), own, RANGES, "user")
    assert trial.admits
    assert contexts(trial.pod) == (
        {"supplementalGroups": [5]},
        {
            "runAsUser": 1234,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "capabilities": {"add": ["NET_RAW"], "drop": ["MKNOD"]},
        },
    )


TOKEN_SOURCES = (
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
)


@pytest.mark.parametrize(
    ("sources", "is_admitted"),
    [
        (TOKEN_SOURCES, True),
        ((*TOKEN_SOURCES, {"secret": {"name": "s"}}), False),
        ((*TOKEN_SOURCES, {"configMap": {"name": "other", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}), False),
        (({"serviceAccountToken": {"path": "token", "audience": "vault"}},), False),
        (({"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "spec.nodeName"}}]}},), False),
    ],
)
def test_volume_with_the_token_of_a_pod_counts_as_a_secret(
    sources: Sequence[Mapping[str, Any]], *, is_admitted: bool
) -> None:
    own = SECURITY_CONTEXT_CONSTRAINTS.rules.default(
        SecurityContextConstraints(
            metadata=ObjectMeta(name="own"),
            priority=20,
            run_as_user=RunAsUserStrategy(type="RunAsAny"),
            se_linux_context=SELinuxContextStrategy(type="RunAsAny"),
            volumes=("secret",),
        )
    )
    wanted = volume(projected={"sources": sources})
    admitted = decide(wanted, (*BOOTSTRAP_SCCS, own), RANGES, usable(("own", *USER))).admitted
    assert admitted is not None
    assert (admitted.scc.metadata.name == "own") == is_admitted
    if is_admitted:
        assert contexts(admitted.pod) == ({}, {})


def test_first_group_of_the_first_block_of_a_namespace_is_filled_in() -> None:
    ranges = parse_ranges({**ANNOTATIONS, "openshift.io/sa.scc.supplemental-groups": "1/3,100-200"})
    admitted = decide(pod(), BOOTSTRAP_SCCS, ranges, usable(USER)).admitted
    assert admitted is not None
    assert contexts(admitted.pod) == ({**F2_POD, "fsGroup": 1}, F2_CONTAINER)
    without_groups = parse_ranges(without(ANNOTATIONS, "openshift.io/sa.scc.supplemental-groups"))
    admitted = decide(pod(), BOOTSTRAP_SCCS, without_groups, usable(USER)).admitted
    assert admitted is not None
    assert contexts(admitted.pod) == (F2_POD, F2_CONTAINER)


def test_containers_of_every_sort_are_filled_on_their_own() -> None:
    init = {"name": "i", "image": "i", "securityContext": {"runAsUser": 1000680005}}
    wanted = pod({"initContainers": [init], "containers": [{"name": n, "image": "i"} for n in "ab"]})
    trial = try_scc(wanted, BY_NAME["restricted-v2"], RANGES, "user")
    assert trial.admits
    spec = trial.pod.spec
    users = [
        each.security_context and each.security_context.run_as_user
        for each in (*spec.init_containers, *spec.containers)
    ]
    assert users == [1000680005, 1000680000, 1000680000]


@pytest.mark.parametrize("name", BY_NAME)
def test_update_is_admitted_only_if_nothing_would_be_filled(name: str) -> None:
    everything = usable(ADMIN)
    filled = annotate(try_scc(pod(), BY_NAME[name], RANGES, "user"))
    unchanged = decide(filled, BOOTSTRAP_SCCS, RANGES, everything, MutablePart.NOTHING).admitted
    assert unchanged is not None
    assert unchanged.scc.metadata.name == name
    assert unchanged.pod == filled
    raw = decide(pod(), [BY_NAME["restricted-v2"]], RANGES, everything, MutablePart.NOTHING)
    assert raw.admitted is None


# --- order ------------------------------------------------------------------------------------------------------------

POINTS = {
    "anyuid": 154_950,
    "restricted-v2": 132_010,
    "restricted": 134_800,
    "nonroot-v2": 142_010,
    "nonroot": 144_800,
    "hostmount-anyuid": 254_950,
    "hostmount-anyuid-v2": 284_950,
    "hostnetwork-v2": 1_332_010,
    "hostnetwork": 1_334_800,
    "hostaccess": 1_434_800,
    "privileged": 3_089_000,
}


def test_default_sccs_have_the_points_and_the_order_of_openshift() -> None:
    assert {name: permissiveness(scc) for name, scc in BY_NAME.items()} == POINTS
    assert [scc.metadata.name for scc in sort_sccs(BOOTSTRAP_SCCS)] == list(POINTS)


@given(st.permutations(BOOTSTRAP_SCCS))
def test_order_does_not_depend_on_the_order_of_the_list(sccs: list[SecurityContextConstraints]) -> None:
    assert sort_sccs(sccs) == sort_sccs(BOOTSTRAP_SCCS)


def test_default_sccs_are_valid_and_have_their_defaults() -> None:
    for scc in BOOTSTRAP_SCCS:
        rules = SECURITY_CONTEXT_CONSTRAINTS.rules
        assert rules.default(scc) == scc
        assert not list(rules.validate(scc))


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "groups"),
    [
        ({}, [(1000680000, 1000689999)]),
        ({"openshift.io/sa.scc.supplemental-groups": "1/3,100-200"}, [(1, 3), (100, 200)]),
        ({"openshift.io/sa.scc.supplemental-groups": ""}, [(1000680000, 1000689999)]),
    ],
)
def test_groups_of_a_namespace_are_blocks(changed: Mapping[str, str], groups: Sequence[tuple[int, int]]) -> None:
    ranges = parse_ranges({**ANNOTATIONS, **changed})
    assert [(block.min, block.max) for block in ranges.groups] == groups


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uid-range", ""),
        ("mcs", ""),
        ("uid-range", "a/b"),
        ("uid-range", "5"),
        ("uid-range", "9-5"),
        ("uid-range", "5/0"),
        ("uid-range", "-5/10"),
        ("uid-range", "1/" + "9" * 5000),
        ("uid-range", "2147483647/2"),
        ("supplemental-groups", "1/3,"),
    ],
)
def test_unreadable_ranges_of_a_namespace_are_named(name: str, value: str) -> None:
    with pytest.raises(BadNamespaceRanges, match=f"openshift.io/sa.scc.{name}"):
        parse_ranges({**ANNOTATIONS, f"openshift.io/sa.scc.{name}": value})


# --- properties -------------------------------------------------------------------------------------------------------

ids = st.sampled_from([None, 0, 1000, 1000680000, 1000689999, 1000690000])
flags = st.sampled_from([None, True, False])
capabilities = st.lists(st.sampled_from(["ALL", "all", "MKNOD", "KILL", "NET_RAW", "NET_BIND_SERVICE"]), max_size=3)
pods = st.builds(
    lambda user, group, own, non_root, escalation, add, drop, network: secured_pod(
        user, group, own, non_root, escalation, add, drop, network
    ),
    ids, ids, ids, flags, flags, capabilities, capabilities, st.booleans(),
)  # fmt: skip


def secured_pod(
    user: int | None,
    group: int | None,
    own: int | None,
    non_root: bool | None,
    escalation: bool | None,
    add: list[str],
    drop: list[str],
    network: bool,
) -> Pod:
    context = {
        "runAsUser": own,
        "runAsNonRoot": non_root,
        "allowPrivilegeEscalation": escalation,
        "capabilities": {"add": add, "drop": drop},
    }
    spec = {"securityContext": {"runAsUser": user, "fsGroup": group}, "hostNetwork": network}
    return pod(spec, {"securityContext": context})


@given(pods, st.sampled_from(BOOTSTRAP_SCCS))
def test_filling_is_idempotent_and_an_admitted_pod_is_admitted_again(
    wanted: Pod, scc: SecurityContextConstraints
) -> None:
    first = try_scc(wanted, scc, RANGES, "user")
    again = try_scc(first.pod, scc, RANGES, "user")
    assert again.pod == first.pod
    assert again.violations == first.violations


@given(pods)
def test_pod_of_a_user_is_never_root_on_the_host(wanted: Pod) -> None:
    trial = decide(wanted, BOOTSTRAP_SCCS, RANGES, usable(USER)).admitted
    if trial is None:
        return
    assert not trial.pod.spec.host_network
    context = trial.pod.spec.containers[0].security_context
    pod_context = trial.pod.spec.security_context
    assert context is not None
    assert pod_context is not None
    user = pod_context.run_as_user if context.run_as_user is None else context.run_as_user
    assert user is not None
    assert 1000680000 <= user <= 1000689999
    assert context.allow_privilege_escalation is False
    assert context.capabilities is not None
    assert "ALL" in context.capabilities.drop
    assert set(context.capabilities.add) <= {"NET_BIND_SERVICE"}


def test_flex_volume_without_a_driver_is_invalid() -> None:
    scc = replace(BY_NAME["restricted"], allowed_flex_volumes=(AllowedFlexVolume(),))
    paths = {error.path for error in SECURITY_CONTEXT_CONSTRAINTS.rules.validate(scc)}
    assert paths == {"allowedFlexVolumes", "allowedFlexVolumes[0].driver"}
