"""The checks of the Pod Security Standards `baseline` and `restricted`. Pure.

Source: the Pod Security Standards and the admission plugin PodSecurity of Kubernetes. Messages are those of Kubernetes.
Each check returns why a pod is not allowed, or None. A policy version limits the checks to those of that release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from api.core.pod import Container, LifecycleHandler, PodSecurityContext, PodSpec, Probe, Profile, SecurityContext
from api.core.volumes import Volume
from master.admission.scc.provider import volume_type

PRIVILEGED, BASELINE, RESTRICTED = "privileged", "baseline", "restricted"
LEVELS = (PRIVILEGED, BASELINE, RESTRICTED)
"""The levels, from the least restrictive one on."""

LATEST = 1 << 30
"""The version `latest`; N stands for v1.N."""

APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"


class CheckedPod(NamedTuple):
    """A pod or a pod template: its annotations and its spec."""

    annotations: Mapping[str, str]
    spec: PodSpec

    @property
    def containers(self) -> tuple[Container, ...]:
        """Return all containers, in the order of messages."""
        return (*self.spec.init_containers, *self.spec.containers, *self.spec.ephemeral_containers)

    @property
    def context(self) -> PodSecurityContext:
        """Return the security context of the pod."""
        return self.spec.security_context or PodSecurityContext()


class Violation(NamedTuple):
    """Why a pod is not allowed."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def violations(subject: CheckedPod, level: str, version: int) -> tuple[Violation, ...]:
    """Return why a pod is not allowed at a level of a version; nothing if it is."""
    if level == PRIVILEGED:
        return ()
    checks = _BASELINE if level == BASELINE else (*_BASELINE_IN_RESTRICTED, *_RESTRICTED)
    found = (check.function(subject, version) for check in checks if version >= check.since)
    return tuple(violation for violation in found if violation is not None)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _own(container: Container) -> SecurityContext:
    return container.security_context or SecurityContext()


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts)


def _named(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {_quoted(names)}"


def _named_containers(containers: Sequence[Container]) -> str:
    return _named("container", [container.name for container in containers])


def _setters(pod: bool, containers: Sequence[Container]) -> str:
    """Return the pod and the containers that set something, as the subject of a sentence."""
    return " and ".join([*(["pod"] if pod else []), *([_named_containers(containers)] if containers else [])])


# --- baseline ---------------------------------------------------------------------------------------------------------


def _app_armor_profile(subject: CheckedPod, _: int) -> Violation | None:
    def is_forbidden(profile: Profile | None) -> bool:
        return profile is not None and profile.type not in ("RuntimeDefault", "Localhost")

    pod = is_forbidden(subject.context.app_armor_profile)
    containers = [each for each in subject.containers if is_forbidden(_own(each).app_armor_profile)]
    profiles = [subject.context.app_armor_profile, *(_own(each).app_armor_profile for each in containers)]
    types = sorted({profile.type for profile in profiles if profile is not None and is_forbidden(profile)})
    details = []
    if types:
        details.append(f"{_setters(pod, containers)} must not set AppArmor profile type to {_quoted(types)}")
    annotations = sorted(
        f'{key}="{value}"'
        for key, value in subject.annotations.items()
        if key.startswith(APPARMOR_ANNOTATION)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if annotations:
        noun = "annotation" if len(annotations) == 1 else "annotations"
        details.append(f"{noun} {', '.join(annotations)}")
    if not details:
        return None
    plural = "s" if len(types) + len(annotations) > 1 else ""
    return Violation(f"forbidden AppArmor profile{plural}", " and ".join(details))


BASELINE_CAPABILITIES = frozenset((
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
))  # fmt: skip


def _added_beyond(container: Container, allowed: frozenset[str]) -> set[str]:
    capabilities = _own(container).capabilities
    return set() if capabilities is None else set(capabilities.add) - allowed


def _capabilities_baseline(subject: CheckedPod, _: int) -> Violation | None:
    containers = [each for each in subject.containers if _added_beyond(each, BASELINE_CAPABILITIES)]
    if not containers:
        return None
    added = sorted(set().union(*(_added_beyond(each, BASELINE_CAPABILITIES) for each in containers)))
    detail = f"{_named_containers(containers)} must not include {_quoted(added)} in securityContext.capabilities.add"
    return Violation("non-default capabilities", detail)


def _host_namespaces(subject: CheckedPod, _: int) -> Violation | None:
    spec = subject.spec
    used = [
        f"{field}=true"
        for field, value in (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc))
        if value
    ]
    return Violation("host namespaces", ", ".join(used)) if used else None


def _host_path_volumes(subject: CheckedPod, _: int) -> Violation | None:
    names = [volume.name for volume in subject.spec.volumes if volume.host_path is not None]
    return Violation("hostPath volumes", _named("volume", names)) if names else None


def _host_ports(subject: CheckedPod, _: int) -> Violation | None:
    containers = [each for each in subject.containers if any(port.host_port for port in each.ports)]
    if not containers:
        return None
    ports = sorted({str(port.host_port) for container in containers for port in container.ports if port.host_port})
    verb, noun = "uses" if len(containers) == 1 else "use", "hostPort" if len(ports) == 1 else "hostPorts"
    return Violation("hostPort", f"{_named_containers(containers)} {verb} {noun} {', '.join(ports)}")


def _host_probes(subject: CheckedPod, _: int) -> Violation | None:
    containers = [each for each in subject.containers if any(_hosts(each))]
    if not containers:
        return None
    hosts = sorted({host for container in containers for host in _hosts(container)})
    verb, noun = "uses" if len(containers) == 1 else "use", "host" if len(hosts) == 1 else "hosts"
    detail = f"{_named_containers(containers)} {verb} probe or lifecycle {noun} {_quoted(hosts)}"
    return Violation("probe or lifecycle host", detail)


def _hosts(container: Container) -> Iterator[str]:
    """Yield the hosts that probes and hooks of a container name, except those that are the pod itself."""
    actions: list[Probe | LifecycleHandler | None] = [
        container.liveness_probe, container.readiness_probe, container.startup_probe,
    ]  # fmt: skip
    if container.lifecycle is not None:
        actions += [container.lifecycle.post_start, container.lifecycle.pre_stop]
    for action in actions:
        for target in (action.http_get, action.tcp_socket) if action is not None else ():
            if target is not None and target.host not in ("", "127.0.0.1", "::1"):
                yield target.host


def _privileged(subject: CheckedPod, _: int) -> Violation | None:
    containers = [each for each in subject.containers if _own(each).privileged]
    detail = f"{_named_containers(containers)} must not set securityContext.privileged=true"
    return Violation("privileged", detail) if containers else None


_FREE_WITH_USER_NAMESPACE = 35
"""The release from which a pod with a user namespace of its own may be root and see all of /proc."""


def _has_user_namespace(subject: CheckedPod, version: int) -> bool:
    return version >= _FREE_WITH_USER_NAMESPACE and subject.spec.host_users is False


def _proc_mount(subject: CheckedPod, version: int) -> Violation | None:
    containers = [each for each in subject.containers if _own(each).proc_mount not in (None, "", "Default")]
    if not containers or _has_user_namespace(subject, version):
        return None
    values = sorted({_own(each).proc_mount or "" for each in containers})
    detail = f"{_named_containers(containers)} must not set securityContext.procMount to {_quoted(values)}"
    return Violation("procMount", detail)


SELINUX_TYPES = frozenset(("", "container_t", "container_init_t", "container_kvm_t"))


def _se_linux_options(subject: CheckedPod, version: int) -> Violation | None:
    allowed = SELINUX_TYPES | ({"container_engine_t"} if version >= 31 else set())
    found = [options for options in (subject.context.se_linux_options,) if options is not None]
    pod = any(options.type not in allowed or options.user or options.role for options in found)
    containers = []
    for container in subject.containers:
        options = _own(container).se_linux_options
        if options is not None and (options.type not in allowed or options.user or options.role):
            containers.append(container)
            found.append(options)
    if not pod and not containers:
        return None
    types = sorted({options.type for options in found if options.type not in allowed})
    details = [_named("type", types)] if types else []
    details += ["user may not be set"] if any(options.user for options in found) else []
    details += ["role may not be set"] if any(options.role for options in found) else []
    setters = _setters(pod, containers)
    return Violation("seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(details)}")


_SECCOMP_TYPES = ("RuntimeDefault", "Localhost")


def _is_forbidden_seccomp(profile: Profile | None) -> bool:
    return profile is not None and profile.type not in _SECCOMP_TYPES


def _seccomp_baseline(subject: CheckedPod, _: int) -> Violation | None:
    pod = _is_forbidden_seccomp(subject.context.seccomp_profile)
    containers = [each for each in subject.containers if _is_forbidden_seccomp(_own(each).seccomp_profile)]
    if not pod and not containers:
        return None
    profiles = [
        *([subject.context.seccomp_profile] if pod else []),
        *(_own(each).seccomp_profile for each in containers),
    ]
    types = sorted({profile.type for profile in profiles if profile is not None})
    detail = f"{_setters(pod, containers)} must not set securityContext.seccompProfile.type to {_quoted(types)}"
    return Violation("seccompProfile", detail)


SYSCTLS: Sequence[tuple[int, Sequence[str]]] = (
    (
        0,
        (
            "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
            "net.ipv4.ping_group_range", "net.ipv4.tcp_syncookies",
        ),
    ),
    (27, ("net.ipv4.ip_local_reserved_ports",)),
    (
        29,
        (
            "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
            "net.ipv4.tcp_keepalive_time",
        ),
    ),
    (32, ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")),
    (37, ("net.ipv4.tcp_notsent_lowat", "net.ipv4.tcp_slow_start_after_idle")),
)  # fmt: skip
"""Sysctls, and the release from which pods may set them."""


def _sysctls(subject: CheckedPod, version: int) -> Violation | None:
    allowed = {name for since, names in SYSCTLS if version >= since for name in names}
    names = [sysctl.name for sysctl in subject.context.sysctls if sysctl.name not in allowed]
    return Violation("forbidden sysctls", ", ".join(names)) if names else None


# --- restricted -------------------------------------------------------------------------------------------------------


def _allow_privilege_escalation(subject: CheckedPod, _: int) -> Violation | None:
    containers = [each for each in subject.containers if _own(each).allow_privilege_escalation is not False]
    detail = f"{_named_containers(containers)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail) if containers else None


_RESTRICTED_CAPABILITIES = frozenset(("NET_BIND_SERVICE",))


def _capabilities_restricted(subject: CheckedPod, _: int) -> Violation | None:
    keeping = []
    for container in subject.containers:
        capabilities = _own(container).capabilities
        if capabilities is None or "ALL" not in capabilities.drop:
            keeping.append(container)
    adding = [each for each in subject.containers if _added_beyond(each, _RESTRICTED_CAPABILITIES)]
    details = []
    if keeping:
        details.append(f'{_named_containers(keeping)} must set securityContext.capabilities.drop=["ALL"]')
    if adding:
        added = sorted(set().union(*(_added_beyond(each, _RESTRICTED_CAPABILITIES) for each in adding)))
        details.append(
            f"{_named_containers(adding)} must not include {_quoted(added)} in securityContext.capabilities.add"
        )
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


RESTRICTED_VOLUMES = frozenset((
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
))  # fmt: skip


def _restricted_volumes(subject: CheckedPod, _: int) -> Violation | None:
    forbidden: list[Volume] = [each for each in subject.spec.volumes if volume_type(each) not in RESTRICTED_VOLUMES]
    if not forbidden:
        return None
    types = sorted({volume_type(volume) for volume in forbidden})
    verb = "uses" if len(forbidden) == 1 else "use"
    names = _named("volume", [volume.name for volume in forbidden])
    return Violation("restricted volume types", f"{names} {verb} restricted {_named('volume type', types)}")


def _run_as_non_root(subject: CheckedPod, version: int) -> Violation | None:
    if _has_user_namespace(subject, version):
        return None
    pod = subject.context.run_as_non_root
    explicit = [each for each in subject.containers if _own(each).run_as_non_root is False]
    if pod is False or explicit:
        setters = _setters(pod is False, explicit)
        return Violation("runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false")
    implicit = [each for each in subject.containers if _own(each).run_as_non_root is None and not pod]
    if not implicit:
        return None
    names = _named_containers(implicit)
    return Violation("runAsNonRoot != true", f"pod or {names} must set securityContext.runAsNonRoot=true")


def _run_as_user(subject: CheckedPod, version: int) -> Violation | None:
    if _has_user_namespace(subject, version):
        return None
    pod = subject.context.run_as_user == 0
    containers = [each for each in subject.containers if _own(each).run_as_user == 0]
    if not pod and not containers:
        return None
    return Violation("runAsUser=0", f"{_setters(pod, containers)} must not set runAsUser=0")


def _seccomp_restricted(subject: CheckedPod, version: int) -> Violation | None:
    explicit = _seccomp_baseline(subject, version)
    if explicit is not None:
        return explicit
    pod = subject.context.seccomp_profile is not None
    implicit = [each for each in subject.containers if _own(each).seccomp_profile is None and not pod]
    if not implicit:
        return None
    accepted = " or ".join(f'"{profile_type}"' for profile_type in _SECCOMP_TYPES)
    names = _named_containers(implicit)
    return Violation("seccompProfile", f"pod or {names} must set securityContext.seccompProfile.type to {accepted}")


class _Check(NamedTuple):
    """A check, and the release from which it applies."""

    function: Callable[[CheckedPod, int], Violation | None]
    since: int = 0


_BASELINE = (
    _Check(_app_armor_profile),
    _Check(_capabilities_baseline),
    _Check(_host_namespaces),
    _Check(_host_path_volumes),
    _Check(_host_ports),
    _Check(_host_probes, 34),
    _Check(_privileged),
    _Check(_proc_mount),
    _Check(_se_linux_options),
    _Check(_seccomp_baseline),
    _Check(_sysctls),
)
_REPLACED = (_capabilities_baseline, _host_path_volumes, _seccomp_baseline)
_BASELINE_IN_RESTRICTED = tuple(check for check in _BASELINE if check.function not in _REPLACED)
_RESTRICTED = (
    _Check(_allow_privilege_escalation),
    _Check(_capabilities_restricted, 22),
    _Check(_restricted_volumes),
    _Check(_run_as_non_root),
    _Check(_run_as_user, 23),
    _Check(_seccomp_restricted),
)
"""Checks in the order of messages: those of baseline, then those of restricted, each sorted by their ids."""
