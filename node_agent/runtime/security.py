"""Security contexts to Docker's security options. Pure.

A field that neither the container nor the pod sets has Docker's default. The exception is seccomp: a container without
a profile runs unconfined, as with kubelet, unless the node's settings change that.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.core.pod import Capabilities, Container, Pod, PodSecurityContext, Profile, SecurityContext, SELinuxOptions
from reconcile.errors import Refused

SAFE_SYSCTLS = frozenset((
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
))  # fmt: skip
"""Sysctls of a pod's own namespaces that cannot harm other pods."""


MASKED_PATHS = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
    "/sys/devices/virtual/powercap", "/sys/firmware",
)  # fmt: skip
"""Paths that kubelet masks in containers, more than Docker's default, because they show other pods and the host."""

STRICT = "Strict"
"""A supplementalGroupsPolicy: a process has the groups that its pod names, and no groups of the image."""


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The security options of a container in Docker's terms.

    `hidden`: masked paths. None means Docker's default; an empty tuple means no masked and no read-only paths.
    """

    user: str = ""
    groups: tuple[int, ...] = ()
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    read_only: bool = False
    hidden: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecurityInputs:
    """What the security options of a container depend on besides its pod.

    `image_user`: USER of the image. `seccomp`: content of the Localhost profile. `apparmor`: the kernel enforces
    AppArmor. `seccomp_default`: a container without a profile gets Docker's.
    """

    image_user: str = ""
    seccomp: str = ""
    apparmor: bool = False
    seccomp_default: bool = False


def container_security(pod: Pod, container: Container, inputs: SecurityInputs) -> SecurityOptions:
    """Return the security options of a container. Raises Refused if it must not or cannot run with its settings."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    capabilities = own.capabilities or Capabilities()
    return SecurityOptions(
        user=_user(pod, container, inputs.image_user),
        groups=_groups(shared),
        privileged=bool(own.privileged),
        cap_add=tuple(map(_without_prefix, capabilities.add)),
        cap_drop=tuple(map(_without_prefix, capabilities.drop)),
        read_only=bool(own.read_only_root_filesystem),
        hidden=None if own.privileged else () if own.proc_mount == "Unmasked" else MASKED_PATHS,
        options=(
            *(("no-new-privileges",) if own.allow_privilege_escalation is False else ()),
            *_seccomp(seccomp_profile(pod, container), inputs),
            *_apparmor(own.app_armor_profile or shared.app_armor_profile, inputs),
            *_selinux(own.se_linux_options or shared.se_linux_options),
        ),
    )


def sandbox_security(pod: Pod) -> SecurityOptions:
    """Return the security options of a sandbox. It runs as the pod's user and may do nothing, because it does nothing.

    Raises Refused for hostUsers false: Docker supports a user namespace for all containers or for none.
    """
    if pod.spec.host_users is False:
        raise Refused("hostUsers false is not supported by this runtime: users in the pod would be those of the host")
    shared = pod.spec.security_context or PodSecurityContext()
    user, group = shared.run_as_user, shared.run_as_group
    return SecurityOptions(
        user="" if user is None else str(user) if group is None else f"{user}:{group}",
        groups=_groups(shared),
        options=("no-new-privileges", *_selinux(shared.se_linux_options)),
    )


def seccomp_profile(pod: Pod, container: Container) -> Profile | None:
    """Return the seccomp profile of a container: its own or the pod's."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    return own.seccomp_profile or shared.seccomp_profile


def sysctls(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Return the sysctls of the sandbox, as (name with dots, value)."""
    shared = pod.spec.security_context or PodSecurityContext()
    return tuple((sysctl.name.replace("/", "."), sysctl.value) for sysctl in shared.sysctls)


def forbidden_sysctl(pod: Pod, allowed: tuple[str, ...] = ()) -> str:
    """Return why the node rejects a pod because of its sysctls. Return an empty string if it does not.

    Only sysctls of the pod's own namespaces are safe. `allowed`: unsafe sysctls that pods may set; a final `*` stands
    for all sysctls with this prefix.
    """
    for name, _ in sysctls(pod):
        if name not in SAFE_SYSCTLS and not any(_matches(pattern, name) for pattern in allowed):
            return f'forbidden sysctl: "{name}" not allowlisted'
        if pod.spec.host_network and name.startswith("net."):
            return f'forbidden sysctl: "{name}" not allowed with host net enabled'
        if pod.spec.host_ipc and name.startswith(("kernel.", "fs.mqueue.")):
            return f'forbidden sysctl: "{name}" not allowed with host ipc enabled'
    return ""


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _user(pod: Pod, container: Container, image_user: str) -> str:
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    run_as_user = own.run_as_user if own.run_as_user is not None else shared.run_as_user
    group = own.run_as_group if own.run_as_group is not None else shared.run_as_group
    non_root = own.run_as_non_root if own.run_as_non_root is not None else shared.run_as_non_root
    by_image, _, _ = image_user.partition(":")
    user = str(run_as_user) if run_as_user is not None else by_image or "0"
    meta = pod.metadata
    where = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if non_root and run_as_user == 0:
        raise Refused(f"container's runAsUser breaks non-root policy {where}")
    if non_root and not user.isdecimal():
        why = f"container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        raise Refused(f"{why} {where}")
    if non_root and int(user) == 0:
        raise Refused(f"container has runAsNonRoot and image will run as root {where}")
    if group is not None:
        if not user.isdecimal():
            raise Refused(f"runAsGroup without runAsUser, and the image has a non-numeric user ({user}) {where}")
        return f"{user}:{group}"
    named = user if run_as_user is not None else image_user or "0"
    return _without_image_groups(named, where) if shared.supplemental_groups_policy == STRICT else named


def _without_image_groups(user: str, where: str) -> str:
    """Return the user with a group, because Docker then adds no groups of the image's /etc/group. Raises Refused."""
    if ":" in user:
        return user
    if user == "0":
        return "0:0"
    why = f"supplementalGroupsPolicy Strict needs runAsGroup: the image does not say which group user {user} has"
    raise Refused(f"{why} {where}")


def _groups(shared: PodSecurityContext) -> tuple[int, ...]:
    own = () if shared.fs_group is None else (shared.fs_group,)
    return tuple(dict.fromkeys((*shared.supplemental_groups, *own)))


def _without_prefix(capability: str) -> str:
    return capability.removeprefix("CAP_")


def _seccomp(profile: Profile | None, inputs: SecurityInputs) -> tuple[str, ...]:
    kind = profile.type if profile is not None else "RuntimeDefault" if inputs.seccomp_default else "Unconfined"
    return {
        "RuntimeDefault": (),
        "Unconfined": ("seccomp=unconfined",),
        "Localhost": (f"seccomp={inputs.seccomp}",),
    }[kind]


def _apparmor(profile: Profile | None, inputs: SecurityInputs) -> tuple[str, ...]:
    if profile is None or profile.type == "RuntimeDefault":
        return ()
    if profile.type == "Unconfined":
        return ("apparmor=unconfined",)
    if not inputs.apparmor:
        raise Refused("cannot enforce AppArmor: AppArmor is not enabled on the host")
    return (f"apparmor={profile.localhost_profile}",)


def _selinux(options: SELinuxOptions | None) -> tuple[str, ...]:
    if options is None:
        return ()
    rows = (("user", options.user), ("role", options.role), ("type", options.type), ("level", options.level))
    return tuple(f"label={name}:{value}" for name, value in rows if value)
