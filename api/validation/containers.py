"""Checks of containers: environment, probes, lifecycle hooks, security contexts. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from api.core import references
from api.core.pod import (
    Capabilities,
    Container,
    EnvFromSource,
    EnvVarSource,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    PodSecurityContext,
    Probe,
    SecurityContext,
    Sysctl,
    is_env_name,
)
from api.core.references import ACCEPTED_RESOURCE_FIELDS, RESOURCE_FIELD
from api.meta import names, quantity
from api.meta.schema import (
    DUPLICATE,
    FORBIDDEN,
    MISSING,
    NOT_SUPPORTED,
    FieldError,
    quoted,
    struct_fields,
    unsupported_values,
)
from api.meta.types import ResourceFieldSelector

HTTP_SCHEMES = ("HTTP", "HTTPS")
STOP_SIGNALS = frozenset((
    *(number.name for number in signal.Signals),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
))  # fmt: skip

MAX_ID = (1 << 31) - 1
"""Maximum user and group ID."""

PROFILE_TYPES = ("RuntimeDefault", "Unconfined", "Localhost")
PROC_MOUNTS = ("Default", "Unmasked")
FS_GROUP_CHANGE_POLICIES = ("Always", "OnRootMismatch")
SUPPLEMENTAL_GROUPS_POLICIES = ("Merge", "Strict")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
_CAPABILITY = re.compile(r"(CAP_)?[A-Z_]+")
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9]([-_a-z0-9]*[a-z0-9])?)")


# --- probes and hooks -------------------------------------------------------------------------------------------------


def check_probes(path: str, container: Container, grace: int, host_network: bool) -> Iterator[FieldError]:
    """Yield the errors of a container's probes and hooks.

    `grace` is the pod's grace period in seconds. Only pods with `host_network` may name another host, because a node
    reaches every project: its probes would reach hosts that the pod itself cannot reach.
    """
    for host_path, host in _handler_hosts(path, container):
        if host and not host_network:
            yield FieldError(host_path, quoted(host), "probes and hooks reach only the pod; omit the host", FORBIDDEN)
    ports = [port.name for port in container.ports]
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is not None:
            yield from _check_probe(f"{path}.{name}", probe, name, ports)
    if container.lifecycle is None:
        return
    for name, hook in (("postStart", container.lifecycle.post_start), ("preStop", container.lifecycle.pre_stop)):
        if hook is not None:
            yield from _check_hook(f"{path}.lifecycle.{name}", hook, ports, grace)
    if container.lifecycle.stop_signal is not None and container.lifecycle.stop_signal not in STOP_SIGNALS:
        bad_value = quoted(container.lifecycle.stop_signal)
        accepted = "a signal such as SIGTERM, SIGUSR1 or SIGRTMIN+3 is accepted"
        yield FieldError(f"{path}.lifecycle.stopSignal", bad_value, accepted, NOT_SUPPORTED)


def _check_probe(path: str, probe: Probe, name: str, ports: Sequence[str]) -> Iterator[FieldError]:
    yield from _check_one_handler(path, probe, ("exec", "httpGet", "tcpSocket", "grpc"))
    yield from _check_handler(path, probe, ports)
    if probe.grpc is not None:
        yield from _check_port(f"{path}.grpc.port", probe.grpc.port, ())
    for field, value in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        if not 0 <= value < 2**31:
            yield FieldError(f"{path}.{field}", quoted(value), "0 or more is accepted")
    if name != "readinessProbe" and probe.success_threshold not in {0, 1}:
        yield FieldError(f"{path}.successThreshold", quoted(probe.success_threshold), f"only 1 is accepted in a {name}")
    grace = probe.termination_grace_period_seconds
    if grace is not None and name == "readinessProbe":
        accepted = "a readinessProbe ends no container; leave this out"
        yield FieldError(f"{path}.terminationGracePeriodSeconds", quoted(grace), accepted, FORBIDDEN)
    elif grace is not None and not 1 <= grace < 2**31:
        yield FieldError(
            f"{path}.terminationGracePeriodSeconds", quoted(grace), f"1 to {2**31 - 1} seconds are accepted"
        )


def _check_hook(path: str, hook: LifecycleHandler, ports: Sequence[str], grace: int) -> Iterator[FieldError]:
    yield from _check_one_handler(path, hook, ("exec", "httpGet", "sleep", "tcpSocket"))
    yield from _check_handler(path, hook, ports)
    if hook.sleep is not None and not 0 <= hook.sleep.seconds <= grace:
        accepted = f"0 to {grace} seconds, the pod's terminationGracePeriodSeconds, are accepted"
        yield FieldError(f"{path}.sleep.seconds", quoted(hook.sleep.seconds), accepted)


def _check_one_handler(path: str, holder: Probe | LifecycleHandler, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    values = {field.encode_name: getattr(holder, field.name) for field in struct_fields(type(holder))}
    set_fields = [name for name in accepted if values[name] is not None]
    if not set_fields:
        yield FieldError(path, "{}", f"one of {', '.join(accepted)} is required", MISSING)
    for name in set_fields[1:]:
        yield FieldError(
            f"{path}.{name}", "given", f"only one handler is accepted, and there is {set_fields[0]}", FORBIDDEN
        )


def _check_handler(path: str, holder: Probe | LifecycleHandler, ports: Sequence[str]) -> Iterator[FieldError]:
    if holder.exec is not None and not holder.exec.command:
        yield FieldError(f"{path}.exec.command", "[]", 'a program is required, for example ["cat", "/ready"]', MISSING)
    if holder.http_get is not None:
        yield from _check_http_get(f"{path}.httpGet", holder.http_get, ports)
    if holder.tcp_socket is not None:
        yield from _check_port(f"{path}.tcpSocket.port", holder.tcp_socket.port, ports)


def _check_http_get(path: str, action: HTTPGetAction, ports: Sequence[str]) -> Iterator[FieldError]:
    yield from _check_port(f"{path}.port", action.port, ports)
    if action.scheme and action.scheme not in HTTP_SCHEMES:
        accepted = f"{', '.join(HTTP_SCHEMES)} are accepted"
        yield FieldError(f"{path}.scheme", quoted(action.scheme), accepted, NOT_SUPPORTED)
    for index, header in enumerate(action.http_headers):
        header_path = f"{path}.httpHeaders[{index}]"
        if not _HEADER_NAME.fullmatch(header.name):
            accepted = "letters, digits and !#$%&'*+-.^_`|~ are accepted"
            yield FieldError(f"{header_path}.name", quoted(header.name), accepted)
        if any(ord(character) < 32 and character != "\t" for character in header.value):
            accepted = "a text without control characters is accepted"
            yield FieldError(f"{header_path}.value", quoted(header.value), accepted)


def _check_port(path: str, port: int | str, ports: Sequence[str]) -> Iterator[FieldError]:
    if isinstance(port, int):
        if not 1 <= port <= 65535:
            yield FieldError(path, quoted(port), "a port is 1 to 65535")
    elif port not in ports or not port:
        known = ", ".join(sorted(filter(None, ports))) or "none"
        yield FieldError(path, quoted(port), f"a number or the name of a port of this container is accepted: {known}")


def _handler_hosts(path: str, container: Container) -> Iterator[tuple[str, str]]:
    """Yield path and value of each host field of probes and hooks."""
    lifecycle = container.lifecycle or Lifecycle()
    for name, holder in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
        ("lifecycle.postStart", lifecycle.post_start),
        ("lifecycle.preStop", lifecycle.pre_stop),
    ):
        if holder is not None and holder.http_get is not None:
            yield f"{path}.{name}.httpGet.host", holder.http_get.host
        if holder is not None and holder.tcp_socket is not None:
            yield f"{path}.{name}.tcpSocket.host", holder.tcp_socket.host


# --- security contexts ------------------------------------------------------------------------------------------------


def check_pod_security(path: str, context: PodSecurityContext | None) -> Iterator[FieldError]:
    """Yield the errors of a pod's security context."""
    if context is None:
        return
    yield from _check_id(f"{path}.runAsUser", context.run_as_user)
    yield from _check_id(f"{path}.runAsGroup", context.run_as_group)
    yield from _check_id(f"{path}.fsGroup", context.fs_group)
    for index, group in enumerate(context.supplemental_groups):
        yield from _check_id(f"{path}.supplementalGroups[{index}]", group)
    groups_policy = context.supplemental_groups_policy or ""
    change_policy = context.fs_group_change_policy or ""
    yield from unsupported_values(
        (f"{path}.supplementalGroupsPolicy", groups_policy, SUPPLEMENTAL_GROUPS_POLICIES),
        (f"{path}.fsGroupChangePolicy", change_policy, FS_GROUP_CHANGE_POLICIES),
    )
    yield from _check_profiles(path, context)
    yield from _check_sysctls(f"{path}.sysctls", context.sysctls)


def check_container_security(path: str, context: SecurityContext | None) -> Iterator[FieldError]:
    """Yield the errors of a container's security context."""
    if context is None:
        return
    yield from _check_id(f"{path}.runAsUser", context.run_as_user)
    yield from _check_id(f"{path}.runAsGroup", context.run_as_group)
    yield from _check_profiles(path, context)
    if context.proc_mount not in {None, *PROC_MOUNTS}:
        bad_value = quoted(context.proc_mount)
        yield FieldError(f"{path}.procMount", bad_value, f"{', '.join(PROC_MOUNTS)} are accepted", NOT_SUPPORTED)
    capabilities = context.capabilities or Capabilities()
    for field, names_of_field in (("add", capabilities.add), ("drop", capabilities.drop)):
        for index, name in enumerate(names_of_field):
            if not _CAPABILITY.fullmatch(name):
                capability_path = f"{path}.capabilities.{field}[{index}]"
                yield FieldError(capability_path, quoted(name), 'such as "NET_ADMIN" are accepted')
    if context.allow_privilege_escalation is False:
        if context.privileged:
            reason = "a privileged container has all privileges"
            yield FieldError(f"{path}.allowPrivilegeEscalation", "false", reason)
        if {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(capabilities.add):
            reason = "a container with the capability SYS_ADMIN can gain privileges"
            yield FieldError(f"{path}.allowPrivilegeEscalation", "false", reason)


def _check_id(path: str, value: int | None) -> Iterator[FieldError]:
    if value is not None and not 0 <= value <= MAX_ID:
        yield FieldError(path, quoted(value), f"0 to {MAX_ID} is accepted")


def _check_profiles(path: str, context: SecurityContext | PodSecurityContext) -> Iterator[FieldError]:
    for name, profile in (("seccompProfile", context.seccomp_profile), ("appArmorProfile", context.app_armor_profile)):
        if profile is None:
            continue
        file = profile.localhost_profile
        file_path = f"{path}.{name}.localhostProfile"
        if profile.type not in PROFILE_TYPES:
            accepted = f"{', '.join(PROFILE_TYPES)} are accepted"
            yield FieldError(f"{path}.{name}.type", quoted(profile.type), accepted, NOT_SUPPORTED)
        elif profile.type == "Localhost" and not file:
            yield FieldError(file_path, '""', "is required with type Localhost", MISSING)
        elif profile.type != "Localhost" and file:
            yield FieldError(file_path, quoted(file), "is accepted only with type Localhost", FORBIDDEN)
        if name == "seccompProfile" and (file.startswith("/") or ".." in file.split("/")):
            yield FieldError(file_path, quoted(file), 'a relative path without ".." is accepted')


def _check_sysctls(path: str, sysctls: tuple[Sysctl, ...]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        name = sysctl.name.replace("/", ".")
        if not _SYSCTL.fullmatch(sysctl.name):
            accepted = 'a name such as "net.ipv4.tcp_syncookies" is accepted'
            yield FieldError(f"{path}[{index}].name", quoted(sysctl.name), accepted)
        elif name in seen:
            yield FieldError(f"{path}[{index}].name", quoted(sysctl.name), "must be unique", DUPLICATE)
        seen.add(name)


# --- environment ------------------------------------------------------------------------------------------------------


def check_env(path: str, container: Container) -> Iterator[FieldError]:
    """Yield the errors of a container's env and envFrom."""
    for index, variable in enumerate(container.env):
        variable_path = f"{path}.env[{index}]"
        if not is_env_name(variable.name):
            accepted = 'printable characters but "=" are accepted'
            yield FieldError(f"{variable_path}.name", quoted(variable.name), accepted)
        if variable.value_from is not None:
            yield from _check_value_from(f"{variable_path}.valueFrom", variable.value_from)
            if variable.value:
                accepted = "a value or a valueFrom is accepted, not both"
                yield FieldError(f"{variable_path}.valueFrom", "given", accepted)
    for index, source in enumerate(container.env_from):
        yield from _check_env_from(f"{path}.envFrom[{index}]", source)


def _check_env_from(path: str, source: EnvFromSource) -> Iterator[FieldError]:
    refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
    set_fields = [(field, ref) for field, ref in refs if ref is not None]
    if len(set_fields) != 1:
        bad_value = quoted([field for field, _ in set_fields])
        yield FieldError(path, bad_value, "exactly one of configMapRef and secretRef is required", MISSING)
    for field, ref in set_fields:
        yield from _check_object_name(f"{path}.{field}", ref.name)
    if source.prefix and not is_env_name(source.prefix):
        yield FieldError(f"{path}.prefix", quoted(source.prefix), 'printable characters but "=" are accepted')


def _check_value_from(path: str, source: EnvVarSource) -> Iterator[FieldError]:
    fields = struct_fields(type(source))
    set_fields = [field.encode_name for field in fields if getattr(source, field.name) is not None]
    if len(set_fields) != 1:
        yield FieldError(path, quoted(set_fields), "exactly one source is required", MISSING)
    if source.file_key_ref is not None:
        yield FieldError(f"{path}.fileKeyRef", "given", "is not supported by this version", FORBIDDEN)
    for key_field, ref in (("configMapKeyRef", source.config_map_key_ref), ("secretKeyRef", source.secret_key_ref)):
        if ref is not None:
            yield from _check_object_name(f"{path}.{key_field}", ref.name)
            if not ref.key:
                yield FieldError(f"{path}.{key_field}.key", '""', "a key is required", MISSING)
    if source.resource_field_ref is not None:
        yield from check_resource_field(f"{path}.resourceFieldRef", source.resource_field_ref)
    selector = source.field_ref
    if selector is not None:
        if not references.is_pod_field(selector.field_path):
            yield FieldError(
                f"{path}.fieldRef.fieldPath", quoted(selector.field_path), references.ACCEPTED_FIELDS, NOT_SUPPORTED
            )
        yield from unsupported_values((f"{path}.fieldRef.apiVersion", selector.api_version, ("v1",)))


def _check_object_name(path: str, name: str) -> Iterator[FieldError]:
    if not name:
        yield FieldError(f"{path}.name", '""', "a name is required", MISSING)
    elif error := names.dns_subdomain_error(name):
        yield FieldError(f"{path}.name", quoted(name), error)


def check_resource_field(path: str, selector: ResourceFieldSelector) -> Iterator[FieldError]:
    """Yield the errors of a selector of a container's resource."""
    if not RESOURCE_FIELD.fullmatch(selector.resource):
        yield FieldError(f"{path}.resource", quoted(selector.resource), ACCEPTED_RESOURCE_FIELDS, NOT_SUPPORTED)
    try:
        if selector.divisor is not None and quantity.parse(selector.divisor) < 0:
            yield FieldError(f"{path}.divisor", quoted(selector.divisor), "a quantity above 0 is accepted")
    except quantity.BadQuantity as error:
        yield FieldError(f"{path}.divisor", quoted(selector.divisor), str(error))
