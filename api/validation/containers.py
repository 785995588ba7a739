"""Checks of containers: environment, probes, lifecycle hooks, security contexts. Pure.

Source: facts/node.md 11 and 12. All times are whole seconds.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import asdict

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
    is_name,
)
from api.core.references import _ACCEPTED, WORDS
from api.meta import names, quantity
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted, unsupported_values
from api.meta.types import ResourceFieldSelector

SCHEMES = ("HTTP", "HTTPS")
SIGNALS = frozenset((
    *(one.name for one in signal.Signals),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
))  # fmt: skip
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_probes(path: str, container: Container, grace: int, on_host: bool) -> Iterator[FieldError]:
    """Every problem with a container's probes and hooks.

    `grace` is the pod's grace period; `on_host` tells whether the pod is in its node's network. Only then may another
    host be asked: a node reaches every lane, and would ask on behalf of a pod that may not reach it.
    """
    for place, host in _hosts(path, container):
        if host and not on_host:
            yield FieldError(place, quoted(host), "only the pod itself is asked; leave this out", FORBIDDEN)
    ports = [port.name for port in container.ports]
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is not None:
            yield from _probe(f"{path}.{name}", probe, name, ports)
    if container.lifecycle is None:
        return
    for name, hook in (("postStart", container.lifecycle.post_start), ("preStop", container.lifecycle.pre_stop)):
        if hook is not None:
            yield from _hook(f"{path}.lifecycle.{name}", hook, ports, grace)
    if container.lifecycle.stop_signal is not None and container.lifecycle.stop_signal not in SIGNALS:
        found = quoted(container.lifecycle.stop_signal)
        wanted = "a signal such as SIGTERM, SIGUSR1 or SIGRTMIN+3 is accepted"
        yield FieldError(f"{path}.lifecycle.stopSignal", found, wanted, NOT_SUPPORTED)


def _probe(path: str, probe: Probe, name: str, ports: Sequence[str]) -> Iterator[FieldError]:
    yield from _one_of(path, probe, ("exec", "httpGet", "tcpSocket", "grpc"))
    yield from _handler(path, probe, ports)
    if probe.grpc is not None:
        yield from _port(f"{path}.grpc.port", probe.grpc.port, ())
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
        wanted = "a readinessProbe ends no container; leave this out"
        yield FieldError(f"{path}.terminationGracePeriodSeconds", quoted(grace), wanted, FORBIDDEN)
    elif grace is not None and not 1 <= grace < 2**31:
        yield FieldError(
            f"{path}.terminationGracePeriodSeconds", quoted(grace), f"1 to {2**31 - 1} seconds are accepted"
        )


def _hook(path: str, hook: LifecycleHandler, ports: Sequence[str], grace: int) -> Iterator[FieldError]:
    yield from _one_of(path, hook, ("exec", "httpGet", "sleep", "tcpSocket"))
    yield from _handler(path, hook, ports)
    if hook.sleep is not None and not 0 <= hook.sleep.seconds <= grace:
        wanted = f"0 to {grace} seconds, the pod's terminationGracePeriodSeconds, are accepted"
        yield FieldError(f"{path}.sleep.seconds", quoted(hook.sleep.seconds), wanted)


def _one_of(path: str, holder: Probe | LifecycleHandler, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    wire = {field.encode_name: getattr(holder, field.name) for field in msgspec.structs.fields(type(holder))}
    given = [name for name in accepted if wire[name] is not None]
    if not given:
        yield FieldError(path, "{}", f"one of {', '.join(accepted)} is required", MISSING)
    for name in given[1:]:
        yield FieldError(f"{path}.{name}", "given", f"only one handler is accepted, and there is {given[0]}", FORBIDDEN)


def _handler(path: str, holder: Probe | LifecycleHandler, ports: Sequence[str]) -> Iterator[FieldError]:
    if holder.exec is not None and not holder.exec.command:
        yield FieldError(f"{path}.exec.command", "[]", 'a program is required, for example ["cat", "/ready"]', MISSING)
    if holder.http_get is not None:
        yield from _http(f"{path}.httpGet", holder.http_get, ports)
    if holder.tcp_socket is not None:
        yield from _port(f"{path}.tcpSocket.port", holder.tcp_socket.port, ports)


def _http(path: str, action: HTTPGetAction, ports: Sequence[str]) -> Iterator[FieldError]:
    yield from _port(f"{path}.port", action.port, ports)
    if action.scheme and action.scheme not in SCHEMES:
        wanted = f"{', '.join(SCHEMES)} are accepted"
        yield FieldError(f"{path}.scheme", quoted(action.scheme), wanted, NOT_SUPPORTED)
    for number, header in enumerate(action.http_headers):
        place = f"{path}.httpHeaders[{number}]"
        if not _HEADER.fullmatch(header.name):
            wanted = "letters, digits and !#$%&'*+-.^_`|~ are accepted"
            yield FieldError(f"{place}.name", quoted(header.name), wanted)
        if any(ord(sign) < 32 and sign != "\t" for sign in header.value):
            yield FieldError(f"{place}.value", quoted(header.value), "a text without control characters is accepted")


def _port(path: str, port: int | str, ports: Sequence[str]) -> Iterator[FieldError]:
    if isinstance(port, int):
        if not 1 <= port <= 65535:
            yield FieldError(path, quoted(port), "a port is 1 to 65535")
    elif port not in ports or not port:
        known = ", ".join(sorted(filter(None, ports))) or "none"
        yield FieldError(path, quoted(port), f"a number or the name of a port of this container is accepted: {known}")


def _hosts(path: str, container: Container) -> Iterator[tuple[str, str]]:
    """Every host that is named, by its path."""
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


MOST_ID = (1 << 31) - 1
SECCOMP_TYPES = APPARMOR_TYPES = ("RuntimeDefault", "Unconfined", "Localhost")
PROC_MOUNTS = ("Default", "Unmasked")
CHANGE_POLICIES = ("Always", "OnRootMismatch")
GROUPS_POLICIES = ("Merge", "Strict")
_CAPABILITY = re.compile(r"(CAP_)?[A-Z_]+")
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])+([a-z0-9]([-_a-z0-9]*[a-z0-9])?)")


def check_pod_security(path: str, context: PodSecurityContext | None) -> Iterator[FieldError]:
    """Every problem of a pod's context."""
    if context is None:
        return
    ids = (("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group), ("fsGroup", context.fs_group))
    yield from _ids(path, ids)
    groups = enumerate(context.supplemental_groups)
    yield from _ids(path, ((f"supplementalGroups[{number}]", group) for number, group in groups))
    yield from unsupported_values(
        (f"{path}.supplementalGroupsPolicy", context.supplemental_groups_policy or "", GROUPS_POLICIES),
        (f"{path}.fsGroupChangePolicy", context.fs_group_change_policy or "", CHANGE_POLICIES),
    )
    yield from _profiles(path, context)
    yield from _sysctls(f"{path}.sysctls", context.sysctls)


def check_container_security(path: str, context: SecurityContext | None) -> Iterator[FieldError]:
    """Every problem of a container's context."""
    if context is None:
        return
    yield from _ids(path, (("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)))
    yield from _profiles(path, context)
    if context.proc_mount not in {None, *PROC_MOUNTS}:
        found = quoted(context.proc_mount)
        yield FieldError(f"{path}.procMount", found, f"{', '.join(PROC_MOUNTS)} are accepted", NOT_SUPPORTED)
    own = context.capabilities or Capabilities()
    for kind, changes in (("add", own.add), ("drop", own.drop)):
        for number, name in enumerate(changes):
            if not _CAPABILITY.fullmatch(name):
                yield FieldError(
                    f"{path}.capabilities.{kind}[{number}]", quoted(name), 'such as "NET_ADMIN" are accepted'
                )
    if context.allow_privilege_escalation is False:
        if context.privileged:
            wanted = "a privileged container has all privileges"
            yield FieldError(f"{path}.allowPrivilegeEscalation", "false", wanted)
        if {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(own.add):
            wanted = "a container with the capability SYS_ADMIN can gain privileges"
            yield FieldError(f"{path}.allowPrivilegeEscalation", "false", wanted)


def _ids(path: str, rows: Iterator[tuple[str, int]] | tuple[tuple[str, int | None], ...]) -> Iterator[FieldError]:
    for name, value in rows:
        if value is not None and not 0 <= value <= MOST_ID:
            yield FieldError(f"{path}.{name}", quoted(value), f"0 to {MOST_ID} is accepted")


def _profiles(path: str, context: SecurityContext | PodSecurityContext) -> Iterator[FieldError]:
    for name, profile in (("seccompProfile", context.seccomp_profile), ("appArmorProfile", context.app_armor_profile)):
        if profile is None:
            continue
        place = f"{path}.{name}"
        if profile.type not in SECCOMP_TYPES:
            wanted = f"{', '.join(SECCOMP_TYPES)} are accepted"
            yield FieldError(f"{place}.type", quoted(profile.type), wanted, NOT_SUPPORTED)
        elif profile.type == "Localhost" and not profile.localhost_profile:
            yield FieldError(f"{place}.localhostProfile", '""', "is required with type Localhost", MISSING)
        elif profile.type != "Localhost" and profile.localhost_profile:
            wanted = "is accepted only with type Localhost"
            yield FieldError(f"{place}.localhostProfile", quoted(profile.localhost_profile), wanted, FORBIDDEN)
        parts = profile.localhost_profile.split("/")
        if name == "seccompProfile" and (profile.localhost_profile.startswith("/") or ".." in parts):
            wanted = 'a relative path without ".." is accepted'
            yield FieldError(f"{place}.localhostProfile", quoted(profile.localhost_profile), wanted)


def _sysctls(path: str, sysctls: tuple[Sysctl, ...]) -> Iterator[FieldError]:
    names = [one.name.replace("/", ".") for one in sysctls]
    for number, one in enumerate(sysctls):
        if not _SYSCTL.fullmatch(one.name):
            wanted = 'a name such as "net.ipv4.tcp_syncookies" is accepted'
            yield FieldError(f"{path}[{number}].name", quoted(one.name), wanted)
        elif names[number] in names[:number]:
            yield FieldError(f"{path}[{number}].name", quoted(one.name), "must be unique", DUPLICATE)


def check_resource_field(path: str, selector: ResourceFieldSelector) -> Iterator[FieldError]:
    """What is wrong with the question itself."""
    if not _ACCEPTED.fullmatch(selector.resource):
        yield FieldError(f"{path}.resource", quoted(selector.resource), WORDS, NOT_SUPPORTED)
    try:
        if selector.divisor is not None and quantity.parse(selector.divisor) < 0:
            yield FieldError(f"{path}.divisor", quoted(selector.divisor), "a quantity above 0 is accepted")
    except quantity.BadQuantity as error:
        yield FieldError(f"{path}.divisor", quoted(selector.divisor), str(error))


_WIRE = {
    "field_ref": "fieldRef",
    "resource_field_ref": "resourceFieldRef",
    "config_map_key_ref": "configMapKeyRef",
    "secret_key_ref": "secretKeyRef",
    "file_key_ref": "fileKeyRef",
}


def check_env(path: str, container: Container) -> Iterator[FieldError]:
    """Every problem of a container's env and envFrom."""
    for number, variable in enumerate(container.env):
        place = f"{path}.env[{number}]"
        if not is_name(variable.name):
            yield FieldError(f"{place}.name", quoted(variable.name), 'printable characters but "=" are accepted')
        if variable.value_from is not None:
            yield from _source(f"{place}.valueFrom", variable.value_from)
            if variable.value:
                yield FieldError(f"{place}.valueFrom", "given", "a value or a valueFrom is accepted, not both")
    for number, source in enumerate(container.env_from):
        yield from _whole(f"{path}.envFrom[{number}]", source)


def _whole(path: str, source: EnvFromSource) -> Iterator[FieldError]:
    refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
    named = [(name, ref) for name, ref in refs if ref is not None]
    if len(named) != 1:
        found = quoted([name for name, _ in named])
        yield FieldError(path, found, "exactly one of configMapRef and secretRef is required", MISSING)
    for name, ref in named:
        yield from _object(f"{path}.{name}", ref.name)
    if source.prefix and not is_name(source.prefix):
        yield FieldError(f"{path}.prefix", quoted(source.prefix), 'printable characters but "=" are accepted')


def _source(path: str, source: EnvVarSource) -> Iterator[FieldError]:
    given = [_WIRE[name] for name, value in asdict(source).items() if value is not None]
    if len(given) != 1:
        yield FieldError(path, quoted(given), "exactly one source is required", MISSING)
    if source.file_key_ref is not None:
        yield FieldError(f"{path}.fileKeyRef", "given", "is not supported by this version", FORBIDDEN)
    for name, ref in (("configMapKeyRef", source.config_map_key_ref), ("secretKeyRef", source.secret_key_ref)):
        if ref is not None:
            yield from _object(f"{path}.{name}", ref.name)
            if not ref.key:
                yield FieldError(f"{path}.{name}.key", '""', "a key is required", MISSING)
    if source.resource_field_ref is not None:
        yield from check_resource_field(f"{path}.resourceFieldRef", source.resource_field_ref)
    selector = source.field_ref
    if selector is not None:
        if not references.is_field(selector.field_path):
            yield FieldError(
                f"{path}.fieldRef.fieldPath", quoted(selector.field_path), references.ACCEPTED, NOT_SUPPORTED
            )
        yield from unsupported_values((f"{path}.fieldRef.apiVersion", selector.api_version, ("v1",)))


def _object(path: str, name: str) -> Iterator[FieldError]:
    if not name:
        yield FieldError(f"{path}.name", '""', "a name is required", MISSING)
    elif names.dns_subdomain_error(name):
        yield FieldError(f"{path}.name", quoted(name), names.dns_subdomain_error(name))
