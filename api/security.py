"""What the processes of a pod may do: security contexts, their shapes and what is wrong with them. Pure.

Source: facts/node.md 5.1. What a container says holds before what its pod says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, choices, shown
from api.value import Json, Value

MOST_ID = (1 << 31) - 1
SECCOMP_TYPES = APPARMOR_TYPES = ("RuntimeDefault", "Unconfined", "Localhost")
PROC_MOUNTS = ("Default", "Unmasked")
CHANGE_POLICIES = ("Always", "OnRootMismatch")
GROUPS_POLICIES = ("Merge", "Strict")
_CAPABILITY = re.compile(r"(CAP_)?[A-Z_]+")
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])+([a-z0-9]([-_a-z0-9]*[a-z0-9])?)")


class Capabilities(Value, frozen=True):
    """Names without `CAP_`; `ALL` is every one."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SELinuxOptions(Value, frozen=True):
    """The label under which SELinux sees the processes."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class Profile(Value, frozen=True):
    """A seccomp or AppArmor profile; `type` is RuntimeDefault, Unconfined or Localhost, the last with a name."""

    type: str
    localhost_profile: str = ""


class Sysctl(Value, frozen=True):
    """A kernel parameter of the pod's own namespaces."""

    name: str
    value: str


class SecurityContext(Value, frozen=True):
    """What one container may do.

    `privileged` gives it all that root on the node has. `read_only_root_filesystem` keeps it from writing to its
    image. `run_as_user` and `run_as_group` are the numbers that its program runs as. `run_as_non_root` refuses to
    start it as root. `allow_privilege_escalation` lets its program become more than it was started as. `proc_mount` is
    Default or Unmasked: whether parts of /proc are hidden.
    """

    privileged: bool | None = None
    capabilities: Capabilities | None = None
    read_only_root_filesystem: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    se_linux_options: SELinuxOptions | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    windows_options: Json = None


class PodSecurityContext(Value, frozen=True):
    """Of all containers of a pod; sysctls and groups are the pod's alone."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    se_linux_options: SELinuxOptions | None = None
    se_linux_change_policy: str | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    sysctls: tuple[Sysctl, ...] = ()
    windows_options: Json = None


def check_pod(path: str, context: PodSecurityContext | None) -> Iterator[Problem]:
    """Every problem of a pod's context."""
    if context is None:
        return
    ids = (("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group), ("fsGroup", context.fs_group))
    yield from _ids(path, ids)
    groups = enumerate(context.supplemental_groups)
    yield from _ids(path, ((f"supplementalGroups[{number}]", group) for number, group in groups))
    yield from choices(
        (f"{path}.supplementalGroupsPolicy", context.supplemental_groups_policy or "", GROUPS_POLICIES),
        (f"{path}.fsGroupChangePolicy", context.fs_group_change_policy or "", CHANGE_POLICIES),
    )
    yield from _profiles(path, context)
    yield from _sysctls(f"{path}.sysctls", context.sysctls)


def check_container(path: str, context: SecurityContext | None) -> Iterator[Problem]:
    """Every problem of a container's context."""
    if context is None:
        return
    yield from _ids(path, (("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)))
    yield from _profiles(path, context)
    if context.proc_mount not in {None, *PROC_MOUNTS}:
        found = shown(context.proc_mount)
        yield Problem(f"{path}.procMount", found, f"{', '.join(PROC_MOUNTS)} are accepted", NOT_SUPPORTED)
    own = context.capabilities or Capabilities()
    for kind, names in (("add", own.add), ("drop", own.drop)):
        for number, name in enumerate(names):
            if not _CAPABILITY.fullmatch(name):
                yield Problem(f"{path}.capabilities.{kind}[{number}]", shown(name), 'such as "NET_ADMIN" are accepted')
    if context.allow_privilege_escalation is False:
        if context.privileged:
            wanted = "a privileged container has all privileges"
            yield Problem(f"{path}.allowPrivilegeEscalation", "false", wanted)
        if {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(own.add):
            wanted = "a container with the capability SYS_ADMIN can gain privileges"
            yield Problem(f"{path}.allowPrivilegeEscalation", "false", wanted)


def _ids(path: str, rows: Iterator[tuple[str, int]] | tuple[tuple[str, int | None], ...]) -> Iterator[Problem]:
    for name, value in rows:
        if value is not None and not 0 <= value <= MOST_ID:
            yield Problem(f"{path}.{name}", shown(value), f"0 to {MOST_ID} is accepted")


def _profiles(path: str, context: SecurityContext | PodSecurityContext) -> Iterator[Problem]:
    for name, profile in (("seccompProfile", context.seccomp_profile), ("appArmorProfile", context.app_armor_profile)):
        if profile is None:
            continue
        place = f"{path}.{name}"
        if profile.type not in SECCOMP_TYPES:
            wanted = f"{', '.join(SECCOMP_TYPES)} are accepted"
            yield Problem(f"{place}.type", shown(profile.type), wanted, NOT_SUPPORTED)
        elif profile.type == "Localhost" and not profile.localhost_profile:
            yield Problem(f"{place}.localhostProfile", '""', "is required with type Localhost", MISSING)
        elif profile.type != "Localhost" and profile.localhost_profile:
            wanted = "is accepted only with type Localhost"
            yield Problem(f"{place}.localhostProfile", shown(profile.localhost_profile), wanted, FORBIDDEN)
        parts = profile.localhost_profile.split("/")
        if name == "seccompProfile" and (profile.localhost_profile.startswith("/") or ".." in parts):
            wanted = 'a relative path without ".." is accepted'
            yield Problem(f"{place}.localhostProfile", shown(profile.localhost_profile), wanted)


def _sysctls(path: str, sysctls: tuple[Sysctl, ...]) -> Iterator[Problem]:
    names = [one.name.replace("/", ".") for one in sysctls]
    for number, one in enumerate(sysctls):
        if not _SYSCTL.fullmatch(one.name):
            wanted = 'a name such as "net.ipv4.tcp_syncookies" is accepted'
            yield Problem(f"{path}[{number}].name", shown(one.name), wanted)
        elif names[number] in names[:number]:
            yield Problem(f"{path}[{number}].name", shown(one.name), "must be unique", DUPLICATE)
