"""SecurityContextConstraints of OpenShift's security.openshift.io: what a pod may be, and for which users. Pure.

Source: the API and the validation of OpenShift. The admission plugin that applies the objects is in
`master/admission/scc/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from api.core.pod import SELinuxOptions
from api.meta.schema import MISSING, FieldError, quoted, unsupported_values
from api.meta.types import Object, Value
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.resource import Column, Resource, Version

SECURITY_GROUP = "security.openshift.io"
SCC_PLURAL = "securitycontextconstraints"

MUST_RUN_AS, MUST_RUN_AS_RANGE, MUST_RUN_AS_NON_ROOT = "MustRunAs", "MustRunAsRange", "MustRunAsNonRoot"
RUN_AS_ANY = "RunAsAny"
"""Types of strategies."""

ANY = "*"
"""All capabilities, volumes, seccomp profiles or sysctls."""

VOLUME_TYPES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephFS", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
    "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image",
    "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd",
    "scaleIO", "secret", "storageOS", "vsphere",
)  # fmt: skip
"""Types of volumes that an SCC can allow, sorted."""

HOST_PATH, FLEX_VOLUME, NO_VOLUMES = "hostPath", "flexVolume", "none"

MAX_ID = (1 << 31) - 1
"""The greatest user or group ID of a container."""


class IDRange(Value, frozen=True):
    """A range of user or group IDs; both ends belong to it."""

    min: int = 0
    max: int = 0


class RunAsUserStrategy(Value, frozen=True):
    """The user IDs of containers.

    `type` is MustRunAs (`uid`), MustRunAsRange (`uidRangeMin` to `uidRangeMax`, by default the namespace's range),
    MustRunAsNonRoot or RunAsAny.
    """

    type: str = ""
    uid: int | None = None
    uid_range_min: int | None = None
    uid_range_max: int | None = None


class SELinuxContextStrategy(Value, frozen=True):
    """The SELinux label of pods. `type` is MustRunAs or RunAsAny. Without a level, MustRunAs is the namespace's."""

    type: str = ""
    se_linux_options: SELinuxOptions | None = None


class GroupStrategy(Value, frozen=True):
    """Groups of pods. `type` is MustRunAs or RunAsAny. Without ranges, MustRunAs is the namespace's."""

    type: str = ""
    ranges: tuple[IDRange, ...] = ()


class AllowedFlexVolume(Value, frozen=True):
    """A driver of flexVolumes that pods may use."""

    driver: str = ""


class SecurityContextConstraints(Object, frozen=True, omit_defaults=False):
    """What pods may be, and the users and groups that may create such pods.

    A pod is admitted by the first SCC that its service account or its requester may use, and whose conditions it
    meets after its missing fields are filled in. SCCs are tried by `priority`, then by how restrictive they are.
    """

    API_VERSION = f"{SECURITY_GROUP}/v1"
    KIND = "SecurityContextConstraints"
    PLURAL = SCC_PLURAL
    NAMESPACED = False

    priority: Int32 | None = None
    allow_privileged_container: bool = False
    default_add_capabilities: tuple[str, ...] | None = None
    required_drop_capabilities: tuple[str, ...] | None = None
    allowed_capabilities: tuple[str, ...] | None = None
    allow_host_dir_volume_plugin: bool = False
    volumes: tuple[str, ...] | None = None
    allowed_flex_volumes: tuple[AllowedFlexVolume, ...] | None = None
    allow_host_network: bool = False
    allow_host_ports: bool = False
    allow_host_pid: bool = msgspec.field(default=False, name="allowHostPID")
    allow_host_ipc: bool = msgspec.field(default=False, name="allowHostIPC")
    user_namespace_level: str | None = None
    default_allow_privilege_escalation: bool | None = None
    allow_privilege_escalation: bool | None = None
    se_linux_context: SELinuxContextStrategy = SELinuxContextStrategy()
    run_as_user: RunAsUserStrategy = RunAsUserStrategy()
    supplemental_groups: GroupStrategy = GroupStrategy()
    fs_group: GroupStrategy = GroupStrategy()
    read_only_root_filesystem: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    seccomp_profiles: tuple[str, ...] | None = None
    allowed_unsafe_sysctls: tuple[str, ...] | None = None
    forbidden_sysctls: tuple[str, ...] | None = None


class LegacySecurityContextConstraints(SecurityContextConstraints, frozen=True, omit_defaults=False):
    """The form in the group without a name, which clients of OpenShift 3 use."""

    API_VERSION = "v1"


# --- defaults ---------------------------------------------------------------------------------------------------------


S = TypeVar("S", bound=SecurityContextConstraints)


def _default_scc(scc: S) -> S:
    allows = scc.allow_privilege_escalation
    return replace(
        scc,
        volumes=_default_volumes(scc.volumes, allows_host_path=scc.allow_host_dir_volume_plugin),
        allow_privilege_escalation=True if allows is None else allows,
        user_namespace_level=scc.user_namespace_level or "AllowHostLevel",
        fs_group=_default_groups(scc.fs_group),
        supplemental_groups=_default_groups(scc.supplemental_groups),
    )


def _default_groups(strategy: GroupStrategy) -> GroupStrategy:
    return strategy if strategy.type else replace(strategy, type=RUN_AS_ANY)


def _default_volumes(volumes: tuple[str, ...] | None, *, allows_host_path: bool) -> tuple[str, ...]:
    """Return the volume types, sorted. `allowHostDirVolumePlugin` decides about hostPath."""
    allowed = {ANY} if volumes is None else set(volumes)
    if not allowed:
        allowed = {HOST_PATH if allows_host_path else NO_VOLUMES}
    if allows_host_path:
        return tuple(sorted(allowed if ANY in allowed else (allowed - {NO_VOLUMES}) | {HOST_PATH}))
    if ANY in allowed:
        allowed = set(VOLUME_TYPES)
    return tuple(sorted(allowed - {HOST_PATH}))


# --- validation -------------------------------------------------------------------------------------------------------

_RUN_AS_USER_TYPES = (MUST_RUN_AS, MUST_RUN_AS_RANGE, RUN_AS_ANY, MUST_RUN_AS_NON_ROOT)
_OTHER_TYPES = (MUST_RUN_AS, RUN_AS_ANY)
_SYSCTL = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SYSCTL_PATTERN = re.compile(rf"({_SYSCTL.pattern}[./*]?\*?|\*)", re.ASCII)
MAX_SYSCTL_LENGTH = 253


def _validate_scc(scc: SecurityContextConstraints) -> Iterator[FieldError]:
    if scc.priority is not None and scc.priority < 0:
        yield FieldError("priority", quoted(scc.priority), "priority cannot be negative")
    yield from _type_errors("runAsUser.type", scc.run_as_user.type, _RUN_AS_USER_TYPES)
    yield from _run_as_user_errors(scc.run_as_user)
    yield from _type_errors("seLinuxContext.type", scc.se_linux_context.type, _OTHER_TYPES)
    for path, groups in (("fsGroup", scc.fs_group), ("supplementalGroups", scc.supplemental_groups)):
        yield from _type_errors(f"{path}.type", groups.type, _OTHER_TYPES)
        yield from _range_errors(path, groups.ranges)
    yield from _capability_errors(scc)
    if scc.default_allow_privilege_escalation and scc.allow_privilege_escalation is False:
        reason = (
            "cannot set DefaultAllowPrivilegeEscalation to true without also setting AllowPrivilegeEscalation to true"
        )
        yield FieldError("defaultAllowPrivilegeEscalation", "true", reason)
    yield from _volume_errors(scc)
    yield from _sysctl_errors(scc)
    yield from _seccomp_errors(scc.seccomp_profiles or ())
    levels = ("AllowHostLevel", "RequirePodLevel")
    yield from unsupported_values(("userNamespaceLevel", scc.user_namespace_level or "", levels))


def _type_errors(path: str, found: str, accepted: Sequence[str]) -> Iterator[FieldError]:
    if not found:
        yield FieldError(path, '""', f"{', '.join(accepted)} are accepted", MISSING)
    elif found not in accepted:
        yield FieldError(path, quoted(found), f"invalid strategy type.  Valid values are {', '.join(accepted)}")


def _run_as_user_errors(strategy: RunAsUserStrategy) -> Iterator[FieldError]:
    low, high = strategy.uid_range_min, strategy.uid_range_max
    for path, value in (("uid", strategy.uid), ("uidRangeMin", low), ("uidRangeMax", high)):
        if value is not None and not 0 <= value <= MAX_ID:
            yield FieldError(f"runAsUser.{path}", quoted(value), f"must be between 0 and {MAX_ID}, inclusive")
    if strategy.type == MUST_RUN_AS and strategy.uid is None:
        yield FieldError("runAsUser.uid", "null", "MustRunAs requires a UID", MISSING)
    if strategy.type == MUST_RUN_AS_RANGE and (low is None) != (high is None):
        missing = "uidRangeMin" if low is None else "uidRangeMax"
        yield FieldError(f"runAsUser.{missing}", "null", "MustRunAsRange requires both ends or none", MISSING)
    if low is not None and high is not None and low > high:
        yield FieldError("runAsUser.uidRangeMin", quoted(low), "min cannot be greater than max")


def _range_errors(path: str, ranges: Sequence[IDRange]) -> Iterator[FieldError]:
    for index, each in enumerate(ranges):
        for end, value in (("min", each.min), ("max", each.max)):
            if value < 0:
                yield FieldError(f"{path}.ranges[{index}].{end}", quoted(value), f"{end} cannot be negative")
            elif value > MAX_ID:
                reason = f"must be between 0 and {MAX_ID}, inclusive"
                yield FieldError(f"{path}.ranges[{index}].{end}", quoted(value), reason)
        if each.min > each.max:
            yield FieldError(f"{path}.ranges[{index}].min", quoted(each.min), "min cannot be greater than max")


def _capability_errors(scc: SecurityContextConstraints) -> Iterator[FieldError]:
    drops = scc.required_drop_capabilities or ()
    for path, added in (
        ("defaultAddCapabilities", scc.default_add_capabilities),
        ("allowedCapabilities", scc.allowed_capabilities),
    ):
        for index, capability in enumerate(added or ()):
            if capability in drops:
                reason = "capability is listed in " + path + " and requiredDropCapabilities"
                yield FieldError(f"{path}[{index}]", quoted(capability), reason)
    if ANY in (scc.allowed_capabilities or ()) and drops:
        reason = "required capabilities must be empty when all capabilities are allowed by a wildcard"
        yield FieldError("requiredDropCapabilities", quoted(drops), reason)


def _volume_errors(scc: SecurityContextConstraints) -> Iterator[FieldError]:
    volumes = scc.volumes or ()
    if NO_VOLUMES in volumes and len(volumes) > 1:
        yield FieldError("volumes", quoted(volumes), "if 'none' is specified, no other values are allowed")
    for index, volume in enumerate(volumes):
        yield from unsupported_values((f"volumes[{index}]", volume, (*VOLUME_TYPES, ANY, NO_VOLUMES)))
    flex_volumes = scc.allowed_flex_volumes or ()
    if flex_volumes and not {FLEX_VOLUME, ANY} & set(volumes):
        reason = "volumes does not include 'flexVolume' or '*', so no flex volumes are allowed"
        yield FieldError("allowedFlexVolumes", quoted([each.driver for each in flex_volumes]), reason)
    for index, each in enumerate(flex_volumes):
        if not each.driver:
            yield FieldError(f"allowedFlexVolumes[{index}].driver", '""', "must specify a driver", MISSING)


def _sysctl_errors(scc: SecurityContextConstraints) -> Iterator[FieldError]:
    allowed, forbidden = scc.allowed_unsafe_sysctls or (), scc.forbidden_sysctls or ()
    for path, patterns in (("allowedUnsafeSysctls", allowed), ("forbiddenSysctls", forbidden)):
        for index, pattern in enumerate(patterns):
            if not pattern or len(pattern) > MAX_SYSCTL_LENGTH or not _SYSCTL_PATTERN.fullmatch(pattern):
                reason = "the name of a sysctl is accepted, or its beginning and `*`"
                yield FieldError(f"{path}[{index}]", quoted(pattern), reason)
        if ANY in patterns and len(patterns) > 1:
            yield FieldError(path, quoted(patterns), "if '*' is present, must not specify other sysctls")
    for index, pattern in enumerate(allowed):
        overlapping = [other for other in forbidden if _overlap(pattern, other)]
        if overlapping:
            reason = f"sysctl overlaps with {quoted(overlapping[0])} of forbiddenSysctls"
            yield FieldError(f"allowedUnsafeSysctls[{index}]", quoted(pattern), reason)


def _overlap(pattern: str, other: str) -> bool:
    """Return whether a sysctl matches both patterns."""
    if pattern.endswith(ANY) and other.endswith(ANY):
        return pattern[:-1].startswith(other[:-1]) or other[:-1].startswith(pattern[:-1])
    return matches_sysctl(pattern, other) or matches_sysctl(other, pattern)


def matches_sysctl(pattern: str, name: str) -> bool:
    """Return whether the name of a sysctl matches a pattern: the same name, or a beginning and `*`."""
    return name.startswith(pattern[:-1]) if pattern.endswith(ANY) else name == pattern


def _seccomp_errors(profiles: Sequence[str]) -> Iterator[FieldError]:
    for index, profile in enumerate(profiles):
        known = profile in (ANY, "runtime/default", "docker/default", "unconfined")
        file = profile.removeprefix("localhost/") if profile.startswith("localhost/") else ""
        if not known and (not file or file.startswith("/") or ".." in file.split("/")):
            reason = "runtime/default, docker/default, unconfined, localhost/FILE and * are accepted"
            yield FieldError(f"seccompProfiles[{index}]", quoted(profile), reason)


# --- resource ---------------------------------------------------------------------------------------------------------


def _list(values: Sequence[str] | None) -> str:
    return "<no value>" if values is None else msgspec.json.encode(list(values)).decode()


def _flag(value: bool) -> str:
    return "true" if value else "false"


SECURITY_CONTEXT_CONSTRAINTS = Resource(
    type=SecurityContextConstraints,
    short_names=("scc",),
    singular_name=SCC_PLURAL,
    columns=(
        Column("Name", "Name of the constraints.", lambda scc, _: scc.metadata.name, format="name"),
        Column("Priv", "Allows privileged containers.", lambda scc, _: _flag(scc.allow_privileged_container)),
        Column("Caps", "Capabilities that containers may add.", lambda scc, _: _list(scc.allowed_capabilities)),
        Column("SELinux", "Strategy for the SELinux label.", lambda scc, _: scc.se_linux_context.type),
        Column("RunAsUser", "Strategy for the user ID.", lambda scc, _: scc.run_as_user.type),
        Column("FSGroup", "Strategy for the group of volumes.", lambda scc, _: scc.fs_group.type),
        Column("SupGroup", "Strategy for further groups.", lambda scc, _: scc.supplemental_groups.type),
        Column(
            "Priority",
            "Constraints of a higher priority are tried first.",
            lambda scc, _: "<no value>" if scc.priority is None else str(scc.priority),
        ),
        Column(
            "ReadOnlyRootFS",
            "Requires read-only root file systems.",
            lambda scc, _: _flag(scc.read_only_root_filesystem),
        ),
        Column("Volumes", "Types of volumes that pods may use.", lambda scc, _: _list(scc.volumes)),
    ),
    rules=KindRules(_default_scc, _validate_scc),
    acted_on_by="the master, when a pod is created",
)

_FIELDS = tuple(name for name in SecurityContextConstraints.__struct_fields__ if name not in ("api_version", "kind"))


def _from_stored(scc: SecurityContextConstraints) -> LegacySecurityContextConstraints:
    return LegacySecurityContextConstraints(**{name: getattr(scc, name) for name in _FIELDS})


def _to_stored(scc: LegacySecurityContextConstraints) -> SecurityContextConstraints:
    return SecurityContextConstraints(**{name: getattr(scc, name) for name in _FIELDS})


_LEGACY_RULES: KindRules[LegacySecurityContextConstraints] = KindRules(_default_scc, _validate_scc)

LEGACY_SECURITY_CONTEXT_CONSTRAINTS = Resource(
    type=LegacySecurityContextConstraints,
    singular_name=SCC_PLURAL,
    columns=SECURITY_CONTEXT_CONSTRAINTS.columns,
    rules=_LEGACY_RULES,
    stored_as=Version(SECURITY_CONTEXT_CONSTRAINTS, _from_stored, _to_stored),
)
