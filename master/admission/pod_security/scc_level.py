"""The level of the Pod Security Standards that an SCC amounts to. Pure.

Source: the label synchronization of OpenShift's cluster-policy-controller. The level is the most restrictive one that
admits every pod which the SCC admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from master.admission.pod_security.checks import (
    BASELINE,
    BASELINE_CAPABILITIES,
    LEVELS,
    PRIVILEGED,
    RESTRICTED,
    RESTRICTED_VOLUMES,
    SELINUX_TYPES,
    SYSCTLS,
)
from master.resources.security_context_constraints import (
    ANY,
    HOST_PATH,
    MUST_RUN_AS,
    MUST_RUN_AS_NON_ROOT,
    MUST_RUN_AS_RANGE,
    NO_VOLUMES,
    IDRange,
    RunAsUserStrategy,
    SecurityContextConstraints,
)


def least_restrictive(levels: Iterable[str]) -> str:
    """Return the least restrictive of some levels; restricted if there are none."""
    return min(levels, key=LEVELS.index, default=RESTRICTED)


def scc_level(scc: SecurityContextConstraints, uids: IDRange) -> str:
    """Return the level of an SCC in a namespace with these user IDs."""
    if _exceeds_baseline(scc):
        return PRIVILEGED
    return BASELINE if any(_exceeds_restricted(scc, uids)) else RESTRICTED


def _exceeds_baseline(scc: SecurityContextConstraints) -> bool:
    return (
        scc.allow_host_dir_volume_plugin
        or not {HOST_PATH, ANY}.isdisjoint(scc.volumes or ())
        or scc.allow_host_network
        or scc.allow_host_pid
        or scc.allow_host_ipc
        or scc.allow_host_ports
        or scc.allow_privileged_container
        or not BASELINE_CAPABILITIES.issuperset(scc.allowed_capabilities or ())
        or not _SAFE_SYSCTLS.issuperset(scc.allowed_unsafe_sysctls or ())
        or _allows_other_labels(scc)
        or not all(map(_is_restricting_profile, scc.seccomp_profiles or ()))
    )


_SAFE_SYSCTLS = frozenset(SYSCTLS[0][1])
"""The sysctls that `baseline` allows in every version."""


def _allows_other_labels(scc: SecurityContextConstraints) -> bool:
    """Return whether pods may have an SELinux label that `baseline` forbids."""
    options = scc.se_linux_context.se_linux_options
    if scc.se_linux_context.type != MUST_RUN_AS:
        return True
    return options is not None and bool(options.type not in SELINUX_TYPES or options.user or options.role)


def _is_restricting_profile(profile: str) -> bool:
    return profile in ("runtime/default", "docker/default") or profile.startswith("localhost/")


def _exceeds_restricted(scc: SecurityContextConstraints, uids: IDRange) -> Iterator[bool]:
    yield scc.allow_privilege_escalation is not False
    yield not {"NET_BIND_SERVICE"}.issuperset(scc.allowed_capabilities or ())
    yield "ALL" not in (scc.required_drop_capabilities or ())
    yield not scc.seccomp_profiles
    yield _allows_root(scc.run_as_user, uids)
    yield not (RESTRICTED_VOLUMES | {NO_VOLUMES}).issuperset(scc.volumes or ())


def _allows_root(strategy: RunAsUserStrategy, uids: IDRange) -> bool:
    if strategy.type == MUST_RUN_AS_NON_ROOT:
        return False
    if strategy.type == MUST_RUN_AS:
        return not strategy.uid
    if strategy.type == MUST_RUN_AS_RANGE:
        low = uids.min if strategy.uid_range_min is None else strategy.uid_range_min
        return low <= 0
    return True
