"""Security contexts to Docker's security options. Pure.

A field that neither container nor pod has set is left to Docker, whose own capabilities then hold; but who says nothing
of seccomp has no profile, as with a kubelet, unless the node says otherwise.
Source: facts/node.md 4 and 5.1.
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
"""They are a pod's own and cannot harm its neighbours."""


MASKED_PATHS = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
    "/sys/devices/virtual/powercap", "/sys/firmware",
)  # fmt: skip
"""What a kubelet hides from containers, more than Docker does by itself: it tells of neighbours and of the host."""

STRICT = "Strict"
"""Of supplementalGroupsPolicy: a process has the groups that its pod names, and none that its image gives the user."""


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What a container's processes are and may do, in Docker's words.

    `hidden` are paths that it does not see, None those that Docker hides by itself; with none no path is read-only.
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
    """What a container's rights depend on besides its pod.

    `image_user` is the image's USER; `seccomp` the content of the Localhost profile; `apparmor`: the kernel has it;
    `seccomp_default`: a container without a profile has Docker's.
    """

    image_user: str = ""
    seccomp: str = ""
    apparmor: bool = False
    seccomp_default: bool = False


def container_security(pod: Pod, container: Container, grounds: SecurityInputs) -> SecurityOptions:
    """Raises Refused when the container must not, or cannot, run as it is asked for."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    capabilities = own.capabilities or Capabilities()
    return SecurityOptions(
        user=_user(pod, container, grounds.image_user),
        groups=_groups(shared),
        privileged=bool(own.privileged),
        cap_add=tuple(map(_bare, capabilities.add)),
        cap_drop=tuple(map(_bare, capabilities.drop)),
        read_only=bool(own.read_only_root_filesystem),
        hidden=None if own.privileged else () if own.proc_mount == "Unmasked" else MASKED_PATHS,
        options=(
            *(("no-new-privileges",) if own.allow_privilege_escalation is False else ()),
            *_seccomp(seccomp_profile(pod, container), grounds),
            *_apparmor(own.app_armor_profile or shared.app_armor_profile, grounds),
            *_selinux(own.se_linux_options or shared.se_linux_options),
        ),
    )


def sandbox_security(pod: Pod) -> SecurityOptions:
    """The sandbox does nothing, so it may do nothing; it runs as the pod's user.

    Raises Refused for a pod that wants users of its own: Docker gives them to all containers or to none.
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
    """The profile that holds for a container."""
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    return own.seccomp_profile or shared.seccomp_profile


def sysctls(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Kernel parameters of the sandbox, by their names with dots."""
    shared = pod.spec.security_context or PodSecurityContext()
    return tuple((one.name.replace("/", "."), one.value) for one in shared.sysctls)


def forbidden_sysctl(pod: Pod, allowed: tuple[str, ...] = ()) -> str:
    """Why a node does not take the pod, empty if it does: only what belongs to the pod's own namespaces is safe.

    `allowed` are others that the operator lets pods set; one that ends with `*` is all that begin so.
    """
    for name, _ in sysctls(pod):
        if name not in SAFE_SYSCTLS and not any(_covers(one, name) for one in allowed):
            return f'forbidden sysctl: "{name}" not allowlisted'
        if pod.spec.host_network and name.startswith("net."):
            return f'forbidden sysctl: "{name}" not allowed with host net enabled'
        if pod.spec.host_ipc and name.startswith(("kernel.", "fs.mqueue.")):
            return f'forbidden sysctl: "{name}" not allowed with host ipc enabled'
    return ""


def _covers(allowed: str, name: str) -> bool:
    return name.startswith(allowed[:-1]) if allowed.endswith("*") else name == allowed


def _user(pod: Pod, container: Container, image_user: str) -> str:
    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context or PodSecurityContext()
    wished = own.run_as_user if own.run_as_user is not None else shared.run_as_user
    group = own.run_as_group if own.run_as_group is not None else shared.run_as_group
    non_root = own.run_as_non_root if own.run_as_non_root is not None else shared.run_as_non_root
    by_image, _, _ = image_user.partition(":")
    user = str(wished) if wished is not None else by_image or "0"
    meta = pod.metadata
    where = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if non_root and wished == 0:
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
    named = user if wished is not None else image_user or "0"
    return _without_image_groups(named, where) if shared.supplemental_groups_policy == STRICT else named


def _without_image_groups(user: str, where: str) -> str:
    """To a user with a group Docker gives no further groups of the image's /etc/group. Raises Refused."""
    if ":" in user:
        return user
    if user == "0":
        return "0:0"
    why = f"supplementalGroupsPolicy Strict needs runAsGroup: the image does not say which group user {user} has"
    raise Refused(f"{why} {where}")


def _groups(shared: PodSecurityContext) -> tuple[int, ...]:
    own = () if shared.fs_group is None else (shared.fs_group,)
    return tuple(dict.fromkeys((*shared.supplemental_groups, *own)))


def _bare(capability: str) -> str:
    return capability.removeprefix("CAP_")


def _seccomp(profile: Profile | None, grounds: SecurityInputs) -> tuple[str, ...]:
    kind = profile.type if profile is not None else "RuntimeDefault" if grounds.seccomp_default else "Unconfined"
    return {
        "RuntimeDefault": (),
        "Unconfined": ("seccomp=unconfined",),
        "Localhost": (f"seccomp={grounds.seccomp}",),
    }[kind]


def _apparmor(profile: Profile | None, grounds: SecurityInputs) -> tuple[str, ...]:
    if profile is None or profile.type == "RuntimeDefault":
        return ()
    if profile.type == "Unconfined":
        return ("apparmor=unconfined",)
    if not grounds.apparmor:
        raise Refused("cannot enforce AppArmor: AppArmor is not enabled on the host")
    return (f"apparmor={profile.localhost_profile}",)


def _selinux(options: SELinuxOptions | None) -> tuple[str, ...]:
    if options is None:
        return ()
    rows = (("user", options.user), ("role", options.role), ("type", options.type), ("level", options.level))
    return tuple(f"label={name}:{value}" for name, value in rows if value)
