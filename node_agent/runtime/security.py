"""Converts security contexts to Docker's security options. Pure.

A field that neither the container nor the pod sets has Docker's default. With `seccompDefault: false`, a container
without a seccomp profile runs unconfined, as with kubelet.
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

    `masked_paths`: None means Docker's default; an empty tuple means no masked and no read-only paths.
    """

    user: str = ""
    groups: tuple[int, ...] = ()
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    read_only: bool = False
    masked_paths: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecurityInputs:
    """The inputs of a container's security options besides its pod.

    `image_user`: USER of the image. `seccomp`: content of the Localhost profile. `apparmor`: the kernel enforces
    AppArmor. `seccomp_default`: a container without a profile gets Docker's.
    """

    image_user: str = ""
    seccomp: str = ""
    apparmor: bool = False
    seccomp_default: bool = False


def container_security(pod: Pod, container: Container, inputs: SecurityInputs) -> SecurityOptions:
    """Return the security options of a container. Raises Refused if it must not or cannot run with its settings."""
    container_context = container.security_context or SecurityContext()
    pod_context = pod.spec.security_context or PodSecurityContext()
    capabilities = container_context.capabilities or Capabilities()
    return SecurityOptions(
        user=_user(pod, container, inputs.image_user),
        groups=_groups(pod_context),
        privileged=bool(container_context.privileged),
        cap_add=tuple(map(_without_prefix, capabilities.add)),
        cap_drop=tuple(map(_without_prefix, capabilities.drop)),
        read_only=bool(container_context.read_only_root_filesystem),
        masked_paths=None
        if container_context.privileged
        else ()
        if container_context.proc_mount == "Unmasked"
        else MASKED_PATHS,
        options=(
            *(("no-new-privileges",) if container_context.allow_privilege_escalation is False else ()),
            *_seccomp(seccomp_profile(pod, container), inputs),
            *_apparmor(container_context.app_armor_profile or pod_context.app_armor_profile, inputs),
            *_selinux(container_context.se_linux_options or pod_context.se_linux_options),
        ),
    )


def sandbox_security(pod: Pod) -> SecurityOptions:
    """Return the security options of a sandbox. It runs as the pod's user and cannot gain privileges.

    Raises Refused for hostUsers false: Docker supports a user namespace for all containers or for none.
    """
    if pod.spec.host_users is False:
        raise Refused("hostUsers false is not supported by this runtime: users in the pod would be those of the host")
    pod_context = pod.spec.security_context or PodSecurityContext()
    user, group = pod_context.run_as_user, pod_context.run_as_group
    return SecurityOptions(
        user="" if user is None else str(user) if group is None else f"{user}:{group}",
        groups=_groups(pod_context),
        options=("no-new-privileges", *_selinux(pod_context.se_linux_options)),
    )


def seccomp_profile(pod: Pod, container: Container) -> Profile | None:
    """Return the seccomp profile of a container: its own or the pod's."""
    container_context = container.security_context or SecurityContext()
    pod_context = pod.spec.security_context or PodSecurityContext()
    return container_context.seccomp_profile or pod_context.seccomp_profile


def sysctls(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Return the sysctls of the sandbox, as (name with dots, value)."""
    pod_context = pod.spec.security_context or PodSecurityContext()
    return tuple((sysctl.name.replace("/", "."), sysctl.value) for sysctl in pod_context.sysctls)


def forbidden_sysctl(pod: Pod, allowed: tuple[str, ...] = ()) -> str:
    """Return the message for a pod with a forbidden sysctl. Return an empty string if all sysctls are allowed.

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
    container_context = container.security_context or SecurityContext()
    pod_context = pod.spec.security_context or PodSecurityContext()
    run_as_user = (
        container_context.run_as_user if container_context.run_as_user is not None else pod_context.run_as_user
    )
    group = container_context.run_as_group if container_context.run_as_group is not None else pod_context.run_as_group
    non_root = (
        container_context.run_as_non_root
        if container_context.run_as_non_root is not None
        else pod_context.run_as_non_root
    )
    image_user_name, _, _ = image_user.partition(":")
    user = str(run_as_user) if run_as_user is not None else image_user_name or "0"
    meta = pod.metadata
    location = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if non_root and run_as_user == 0:
        raise Refused(f"container's runAsUser breaks non-root policy {location}")
    if non_root and not user.isdecimal():
        problem = f"container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        raise Refused(f"{problem} {location}")
    if non_root and int(user) == 0:
        raise Refused(f"container has runAsNonRoot and image will run as root {location}")
    if group is not None:
        if not user.isdecimal():
            raise Refused(f"runAsGroup without runAsUser, and the image has a non-numeric user ({user}) {location}")
        return f"{user}:{group}"
    user_and_group = user if run_as_user is not None else image_user or "0"
    return (
        _without_image_groups(user_and_group, location)
        if pod_context.supplemental_groups_policy == STRICT
        else user_and_group
    )


def _without_image_groups(user: str, location: str) -> str:
    """Return the user with a group, because Docker then adds no groups of the image's /etc/group. Raises Refused."""
    if ":" in user:
        return user
    if user == "0":
        return "0:0"
    problem = f"supplementalGroupsPolicy Strict needs runAsGroup: the image does not say which group user {user} has"
    raise Refused(f"{problem} {location}")


def _groups(pod_context: PodSecurityContext) -> tuple[int, ...]:
    fs_group = () if pod_context.fs_group is None else (pod_context.fs_group,)
    return tuple(dict.fromkeys((*pod_context.supplemental_groups, *fs_group)))


def _without_prefix(capability: str) -> str:
    return capability.removeprefix("CAP_")


def _seccomp(profile: Profile | None, inputs: SecurityInputs) -> tuple[str, ...]:
    profile_type = profile.type if profile is not None else "RuntimeDefault" if inputs.seccomp_default else "Unconfined"
    return {
        "RuntimeDefault": (),
        "Unconfined": ("seccomp=unconfined",),
        "Localhost": (f"seccomp={inputs.seccomp}",),
    }[profile_type]


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
    labels = (("user", options.user), ("role", options.role), ("type", options.type), ("level", options.level))
    return tuple(f"label={name}:{value}" for name, value in labels if value)
