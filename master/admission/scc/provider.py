"""One SCC for the pods of one namespace: it fills in what a pod leaves open, and checks the result. Pure.

Source: the SCC admission of OpenShift. Texts and paths of violations are those of OpenShift, because users search for
them. A container's privileges are its effective ones: a field that it does not set is that of its pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from msgspec.structs import replace

from api.core.pod import (
    Capabilities,
    Container,
    Pod,
    PodSecurityContext,
    PodSpec,
    Profile,
    SecurityContext,
    SELinuxOptions,
)
from api.core.volumes import ProjectedVolumeSource, Volume
from master.admission.scc.namespace_ranges import NamespaceRanges
from master.resources.metadata import with_metadata
from master.resources.security_context_constraints import (
    ANY,
    MUST_RUN_AS,
    MUST_RUN_AS_NON_ROOT,
    MUST_RUN_AS_RANGE,
    RUN_AS_ANY,
    GroupStrategy,
    IDRange,
    SecurityContextConstraints,
    matches_sysctl,
)

SECCOMP_POD_ANNOTATION = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER_ANNOTATION = "container.seccomp.security.alpha.kubernetes.io/"

SAFE_SYSCTLS = frozenset(
    (
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    )
)
"""Sysctls that every pod may set: they concern its own namespaces only."""

MAX_VIOLATIONS = 20
"""Violations of one pod that are found for one SCC."""


class MutablePart(Enum):
    """The part of a pod that may be filled in: all of a new one, ephemeral containers of one that they are added to."""

    POD = auto()
    EPHEMERAL_CONTAINERS = auto()
    NOTHING = auto()


class Violation(NamedTuple):
    """A condition of an SCC that a pod does not meet.

    `path` begins with the name of the SCC. `value` is the value as text, None if the error is not about a value.
    """

    path: str
    reason: str
    value: str | None
    detail: str

    def __str__(self) -> str:
        value = "" if self.value is None else f": {self.value}"
        return f"{self.path}: {self.reason}{value}" + (f": {self.detail}" if self.detail else "")


def invalid(path: str, value: Any, detail: str) -> Violation:
    """Return a violation by a value."""
    return Violation(path, "Invalid value", _shown(value), detail)


def forbidden(path: str, detail: str) -> Violation:
    """Return a violation without a value."""
    return Violation(path, "Forbidden", None, detail)


def _required(path: str, detail: str = "") -> Violation:
    return Violation(path, "Required value", None, detail)


def _shown(value: Any) -> str:
    """Return a value as Kubernetes writes it in errors."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value[:256]}"'
    if isinstance(value, tuple):
        texts = value and isinstance(value[0], str)
        return f"[]{'string' if texts else 'int64'}{{{', '.join(map(_shown, value[:32]))}}}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Provider:
    """An SCC with the values of a namespace in place of those that it leaves open."""

    scc: SecurityContextConstraints
    uids: IDRange | None
    """The range of MustRunAsRange, and the one ID of MustRunAs."""
    se_linux: SELinuxOptions | None
    fs_groups: Sequence[IDRange]
    supplemental_groups: Sequence[IDRange]

    @property
    def name(self) -> str:
        """Return the name of the SCC."""
        return self.scc.metadata.name

    # --- filling in ---------------------------------------------------------------------------------------------------

    def fill(self, pod: Pod, part: MutablePart) -> Pod:
        """Return the pod with every field of this part set that it leaves open and for which the SCC has a value.

        Idempotent.
        """
        if part is MutablePart.NOTHING:
            return pod
        if part is MutablePart.POD:
            pod = self._fill_pod(pod)
        spec = pod.spec
        context = spec.security_context or PodSecurityContext()
        ephemeral = tuple(self._fill_container(context, each) for each in spec.ephemeral_containers)
        if part is MutablePart.EPHEMERAL_CONTAINERS:
            return pod if ephemeral == spec.ephemeral_containers else _with_spec(pod, ephemeral_containers=ephemeral)
        init = tuple(self._fill_container(context, each) for each in spec.init_containers)
        containers = tuple(self._fill_container(context, each) for each in spec.containers)
        if (init, containers, ephemeral) == (spec.init_containers, spec.containers, spec.ephemeral_containers):
            return pod
        return _with_spec(pod, init_containers=init, containers=containers, ephemeral_containers=ephemeral)

    def _fill_pod(self, pod: Pod) -> Pod:
        context = pod.spec.security_context or PodSecurityContext()
        changes: dict[str, Any] = {}
        if not context.supplemental_groups and self._must_have(self.scc.supplemental_groups):
            changes["supplemental_groups"] = (self.supplemental_groups[0].min,)
        if context.fs_group is None and self._must_have(self.scc.fs_group):
            changes["fs_group"] = self.fs_groups[0].min
        if context.se_linux_options is None and self.se_linux is not None:
            changes["se_linux_options"] = self.se_linux
        profile = self._seccomp_profile(pod)
        if profile:
            if context.seccomp_profile is None:
                changes["seccomp_profile"] = _as_field(profile)
            if pod.metadata.annotations.get(SECCOMP_POD_ANNOTATION) != profile:
                annotations = {**pod.metadata.annotations, SECCOMP_POD_ANNOTATION: profile}
                pod = with_metadata(pod, annotations=annotations)
        return _with_spec(pod, security_context=replace(context, **changes)) if changes else pod

    @staticmethod
    def _must_have(strategy: GroupStrategy) -> bool:
        return strategy.type == MUST_RUN_AS

    def _seccomp_profile(self, pod: Pod) -> str:
        own = pod_seccomp(pod)
        if own:
            return own
        return next((profile for profile in self.scc.seccomp_profiles or () if profile != ANY), "")

    def _fill_container(self, pod: PodSecurityContext, container: Any) -> Any:
        own = container.security_context or SecurityContext()
        changes: dict[str, Any] = {}
        user = pod.run_as_user if own.run_as_user is None else own.run_as_user
        if user is None and self.uids is not None:
            user = changes["run_as_user"] = self.uids.min
        non_root = pod.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
        if non_root is None and (user or (user is None and self.scc.run_as_user.type == MUST_RUN_AS_NON_ROOT)):
            changes["run_as_non_root"] = True
        capabilities = self._capabilities(own.capabilities)
        if capabilities != own.capabilities:
            changes["capabilities"] = capabilities
        if self.scc.read_only_root_filesystem and own.read_only_root_filesystem is None:
            changes["read_only_root_filesystem"] = True
        adds_sys_admin = own.capabilities is not None and "CAP_SYS_ADMIN" in own.capabilities.add
        if own.allow_privilege_escalation is None and not own.privileged and not adds_sys_admin:
            default = self.scc.default_allow_privilege_escalation
            if default is None and self.scc.allow_privilege_escalation is False:
                default = False
            if default is not None:
                changes["allow_privilege_escalation"] = default
        return replace(container, security_context=replace(own, **changes)) if changes else container

    def _capabilities(self, own: Capabilities | None) -> Capabilities | None:
        add, drop = (set(own.add), set(own.drop)) if own is not None else (set(), set())
        all_add = add | (set(self.scc.default_add_capabilities or ()) - drop)
        all_drop = drop | set(self.scc.required_drop_capabilities or ())
        if (all_add, all_drop) == (add, drop):
            return own
        return Capabilities(add=tuple(sorted(all_add)), drop=tuple(sorted(all_drop)))

    # --- checking -----------------------------------------------------------------------------------------------------

    def violations(self, pod: Pod) -> Iterator[Violation]:
        """Yield the conditions that a pod does not meet."""
        path = f"provider {self.name}: "
        context = pod.spec.security_context or PodSecurityContext()
        yield from self._pod_violations(f"{path}.spec.securityContext", pod, context)
        for field, containers in (
            ("initContainers", pod.spec.init_containers),
            ("containers", pod.spec.containers),
            ("ephemeralContainers", pod.spec.ephemeral_containers),
        ):
            for index, container in enumerate(containers):
                yield from self._container_violations(f"{path}.{field}[{index}]", pod, context, container)

    def _pod_violations(self, path: str, pod: Pod, context: PodSecurityContext) -> Iterator[Violation]:
        scc = self.scc
        fs_groups = () if context.fs_group is None else (context.fs_group,)
        yield from _group_violations(path, "fsGroup", scc.fs_group, self.fs_groups, fs_groups)
        yield from _group_violations(
            path, "supplementalGroups", scc.supplemental_groups, self.supplemental_groups, context.supplemental_groups
        )
        for profile in _profiles_to_check(pod_seccomp(pod), _as_text(context.seccomp_profile)):
            yield from self._seccomp_violations(f"pod.metadata.annotations[{SECCOMP_POD_ANNOTATION}]", profile)
        yield from self._se_linux_violations(f"{path}.seLinuxOptions", context.se_linux_options)
        yield from self._namespace_violations(path, pod.spec)
        for index, sysctl in enumerate(context.sysctls):
            yield from self._sysctl_violations(f"pod.spec.securityContext.sysctls[{index}]", sysctl.name)
        if scc.user_namespace_level == "RequirePodLevel" and pod.spec.host_users is not False:
            yield invalid(f"{path}.hostUsers", pod.spec.host_users, "Host Users must be set to false")
        allowed = frozenset(scc.volumes or ())
        for index, volume in enumerate(pod.spec.volumes):
            kind = volume_type(volume)
            if not _allows_volume(allowed, kind, volume):
                yield invalid(f"spec.volumes[{index}]", kind, f"{kind} volumes are not allowed to be used")

    def _namespace_violations(self, path: str, spec: PodSpec) -> Iterator[Violation]:
        scc = self.scc
        for field, wanted, allowed, name in (
            ("hostNetwork", spec.host_network, scc.allow_host_network, "network"),
            ("hostPID", spec.host_pid, scc.allow_host_pid, "PID"),
            ("hostIPC", spec.host_ipc, scc.allow_host_ipc, "IPC"),
        ):
            if wanted and not allowed:
                yield invalid(f"{path}.{field}", True, f"Host {name} is not allowed to be used")

    def _container_violations(
        self, path: str, pod: Pod, pod_context: PodSecurityContext, container: Container
    ) -> Iterator[Violation]:
        scc, context = self.scc, container.security_context or SecurityContext()
        user = pod_context.run_as_user if context.run_as_user is None else context.run_as_user
        non_root = pod_context.run_as_non_root if context.run_as_non_root is None else context.run_as_non_root
        yield from self._user_violations(path, user, non_root)
        yield from self._se_linux_violations(
            f"{path}.seLinuxOptions", context.se_linux_options or pod_context.se_linux_options
        )
        field = _as_text(context.seccomp_profile or pod_context.seccomp_profile)
        for profile in _profiles_to_check(container_seccomp(pod, container), field):
            yield from self._seccomp_violations(
                f"pod.metadata.annotations[{SECCOMP_CONTAINER_ANNOTATION}{container.name[:256]}]", profile
            )
        if not scc.allow_privileged_container:
            yield from _privilege_violations(path, pod_context, context)
        yield from self._capability_violations(path, context.capabilities)
        if pod.spec.host_network and not scc.allow_host_network:
            yield invalid(f"{path}.hostNetwork", True, "Host network is not allowed to be used")
        if not scc.allow_host_ports:
            yield from _host_port_violations(path, container)
        for field, wanted, allowed, name in (
            ("hostPID", pod.spec.host_pid, scc.allow_host_pid, "PID"),
            ("hostIPC", pod.spec.host_ipc, scc.allow_host_ipc, "IPC"),
        ):
            if wanted and not allowed:
                yield invalid(f"{path}.{field}", True, f"Host {name} is not allowed to be used")
        if scc.read_only_root_filesystem and not context.read_only_root_filesystem:
            value, detail = context.read_only_root_filesystem, "ReadOnlyRootFilesystem must be set to true"
            if value is None:
                detail = "ReadOnlyRootFilesystem may not be nil and must be set to true"
            yield invalid(f"{path}.readOnlyRootFilesystem", value, detail)
        if scc.allow_privilege_escalation is False and context.allow_privilege_escalation is not False:
            yield invalid(
                f"{path}.allowPrivilegeEscalation",
                context.allow_privilege_escalation,
                "Allowing privilege escalation for containers is not allowed",
            )

    def _user_violations(self, path: str, user: int | None, non_root: bool | None) -> Iterator[Violation]:
        strategy = self.scc.run_as_user.type
        if strategy == MUST_RUN_AS_NON_ROOT:
            if user is None and non_root is None:
                yield _required(f"{path}.runAsNonRoot", "must be true")
            if non_root is False:
                yield invalid(f"{path}.runAsNonRoot", False, "must be true")
            if user == 0:
                yield invalid(f"{path}.runAsUser", 0, "running with the root UID is forbidden")
        elif self.uids is not None:
            low, high = self.uids.min, self.uids.max
            if user is None:
                yield _required(f"{path}.runAsUser")
            elif not low <= user <= high:
                is_range = strategy == MUST_RUN_AS_RANGE
                detail = f"must be in the ranges: [{low}, {high}]" if is_range else f"must be: {low}"
                yield invalid(f"{path}.runAsUser", user, detail)

    def _se_linux_violations(self, path: str, options: SELinuxOptions | None) -> Iterator[Violation]:
        required = self.se_linux
        if required is None:
            return
        if options is None:
            yield _required(path)
            return
        if _level(options.level) != _level(required.level):
            yield invalid(f"{path}.level", options.level, f"must be {required.level}")
        for field in ("role", "type", "user"):
            found, wanted = getattr(options, field), getattr(required, field)
            if found != wanted:
                yield invalid(f"{path}.{field}", found, f"must be {wanted}")

    def _seccomp_violations(self, path: str, profile: str) -> Iterator[Violation]:
        allowed = self.scc.seccomp_profiles or ()
        if ANY in allowed:
            return
        if not allowed:
            if profile:
                yield forbidden(path, "seccomp may not be set")
        elif _canonical(profile) not in map(_canonical, allowed):
            detail = f"{profile[:256]} is not an allowed seccomp profile. Valid values are [{' '.join(allowed)}]"
            yield forbidden(path, detail)

    def _capability_violations(self, path: str, capabilities: Capabilities | None) -> Iterator[Violation]:
        default, required = self.scc.default_add_capabilities or (), self.scc.required_drop_capabilities or ()
        if capabilities is None:
            if default or required:
                detail = "required capabilities are not set on the securityContext"
                yield invalid(f"{path}.capabilities", None, detail)
            return
        allowed = set(default) | set(self.scc.allowed_capabilities or ())
        for capability in capabilities.add:
            if capability not in allowed and ANY not in allowed:
                yield invalid(f"{path}.capabilities.add", capability, "capability may not be added")
        for capability in sorted(set(required) - set(capabilities.drop)):
            detail = f"{capability} is required to be dropped but was not found"
            yield invalid(f"{path}.capabilities.drop", capabilities.drop, detail)

    def _sysctl_violations(self, path: str, name: str) -> Iterator[Violation]:
        if any(matches_sysctl(pattern, name) for pattern in self.scc.forbidden_sysctls or ()):
            yield forbidden(path, f'sysctl "{name[:256]}" is not allowed')
        elif name not in SAFE_SYSCTLS and not any(
            matches_sysctl(pattern, name) for pattern in self.scc.allowed_unsafe_sysctls or ()
        ):
            yield forbidden(path, f'unsafe sysctl "{name[:256]}" is not allowed')


def provider_for(scc: SecurityContextConstraints, ranges: NamespaceRanges) -> Provider:
    """Return an SCC for the pods of a namespace that has these ranges."""
    user, se_linux = scc.run_as_user, scc.se_linux_context
    uids = None
    if user.type == MUST_RUN_AS and user.uid is not None:
        uids = IDRange(min=user.uid, max=user.uid)
    elif user.type == MUST_RUN_AS_RANGE:
        if user.uid_range_min is not None and user.uid_range_max is not None:
            uids = IDRange(min=user.uid_range_min, max=user.uid_range_max)
        else:
            uids = ranges.uids
    options = None
    if se_linux.type == MUST_RUN_AS:
        options = se_linux.se_linux_options or SELinuxOptions()
        options = options if options.level else replace(options, level=ranges.level)
    first = ranges.groups[0].min
    return Provider(
        scc,
        uids,
        options,
        scc.fs_group.ranges or (IDRange(min=first, max=first),),
        scc.supplemental_groups.ranges or ranges.groups,
    )


def _with_spec(pod: Pod, **changes: Any) -> Pod:
    return replace(pod, spec=replace(pod.spec, **changes))


def _privilege_violations(path: str, pod_context: PodSecurityContext, context: SecurityContext) -> Iterator[Violation]:
    """Yield the privileges of a container that only an SCC for privileged containers allows.

    OpenShift has the first one only: its hosts have no AppArmor, and a container with all of /proc needs a user
    namespace there, which Docker does not give to pods.
    """
    if context.privileged:
        yield invalid(f"{path}.privileged", True, "Privileged containers are not allowed")
    if context.proc_mount not in (None, "", "Default"):
        yield invalid(f"{path}.procMount", context.proc_mount, "unmasked paths are not allowed")
    app_armor = context.app_armor_profile or pod_context.app_armor_profile
    if app_armor is not None and app_armor.type == "Unconfined":
        yield invalid(f"{path}.appArmorProfile", app_armor.type, "unconfined AppArmor profiles are not allowed")


def _group_violations(
    path: str, field: str, strategy: GroupStrategy, ranges: Sequence[IDRange], groups: tuple[int, ...]
) -> Iterator[Violation]:
    if strategy.type == RUN_AS_ANY:
        return
    if not groups:
        yield invalid(f"{path}.{field}", groups, "unable to validate empty groups against required ranges")
    for group in groups:
        if not any(each.min <= group <= each.max for each in ranges):
            yield invalid(f"{path}.{field}", groups, f"{group} is not an allowed group")


def _host_port_violations(path: str, container: Container) -> Iterator[Violation]:
    for port in container.ports:
        if port.host_port > 0:
            # OpenShift names the container twice.
            doubled = f"{path}.{path.rpartition('.')[2]}.hostPort"
            yield invalid(doubled, port.host_port, "Host ports are not allowed to be used")


# --- SELinux levels ---------------------------------------------------------------------------------------------------

_LEVEL = re.compile(r"(s\d{1,4}(?:-s\d{1,4})?):(c\d{1,4}(?:,c\d{1,4}){0,31})", re.ASCII)


def _level(text: str) -> tuple[str, ...]:
    """Return a form of a level in which the order of the categories does not matter."""
    match = _LEVEL.fullmatch(text)
    return (text,) if match is None else (match[1], *sorted(match[2].split(",")))


# --- seccomp ----------------------------------------------------------------------------------------------------------

_PROFILE_TYPES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def pod_seccomp(pod: Pod) -> str:
    """Return the seccomp profile of a pod as SCCs name it: that of its annotation or its field; empty if not set."""
    context = pod.spec.security_context
    annotated = pod.metadata.annotations.get(SECCOMP_POD_ANNOTATION, "")
    return annotated or _as_text(context.seccomp_profile if context is not None else None)


def container_seccomp(pod: Pod, container: Container) -> str:
    """Return the seccomp profile of a container: its own field or annotation, or that of the pod."""
    context = container.security_context
    own = _as_text(context.seccomp_profile if context is not None else None)
    return own or pod.metadata.annotations.get(SECCOMP_CONTAINER_ANNOTATION + container.name, "") or pod_seccomp(pod)


def _profiles_to_check(profile: str, field: str) -> tuple[str, ...]:
    """Return the profile as SCCs see it, and that of the field if it is another one: the field is what nodes apply."""
    return (profile, field) if field and _canonical(field) != _canonical(profile) else (profile,)


def _as_text(profile: Profile | None) -> str:
    if profile is None:
        return ""
    return _PROFILE_TYPES.get(profile.type, f"localhost/{profile.localhost_profile}")


def _as_field(profile: str) -> Profile:
    if profile.startswith("localhost/"):
        return Profile(type="Localhost", localhost_profile=profile.removeprefix("localhost/"))
    return Profile(type="Unconfined" if profile == "unconfined" else "RuntimeDefault")


def _canonical(profile: str) -> str:
    return "runtime/default" if profile == "docker/default" else profile


# --- volumes ----------------------------------------------------------------------------------------------------------

_SOURCES = {
    "empty_dir": "emptyDir",
    "host_path": "hostPath",
    "config_map": "configMap",
    "secret": "secret",
    "downward_api": "downwardAPI",
    "projected": "projected",
    "persistent_volume_claim": "persistentVolumeClaim",
    "nfs": "nfs",
    "ephemeral": "ephemeral",
    "csi": "csi",
    "image": "image",
}


def volume_type(volume: Volume) -> str:
    """Return the type of a volume as SCCs name it. A volume without a source is an emptyDir."""
    return next((name for field, name in _SOURCES.items() if getattr(volume, field) is not None), "emptyDir")


def _allows_volume(allowed: frozenset[str], kind: str, volume: Volume) -> bool:
    if ANY in allowed or kind in allowed:
        return True
    # Every pod has a volume with its token.
    return "secret" in allowed and volume.projected is not None and _is_token_volume(volume.projected)


_CONFIG_MAPS: Mapping[str, str] = {"kube-root-ca.crt": "ca.crt", "openshift-service-ca.crt": "service-ca.crt"}


def _is_token_volume(projected: ProjectedVolumeSource) -> bool:
    for source in projected.sources:
        token, config_map, downward = source.service_account_token, source.config_map, source.downward_api
        if token is not None:
            if token.path != "token" or token.audience:
                return False
        elif config_map is not None:
            key = _CONFIG_MAPS.get(config_map.name)
            if key is None or [(item.key, item.path) for item in config_map.items] != [(key, key)]:
                return False
        elif downward is not None:
            fields = [(item.path, item.field_ref and item.field_ref.field_path) for item in downward.items]
            if fields != [("namespace", "metadata.namespace")]:
                return False
        else:
            return False
    return True
