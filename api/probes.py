"""Probes and lifecycle hooks of containers: their shapes, what is filled in, and what is wrong with them. Pure.

Source: facts/node.md 11 and 12. All times are whole seconds.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, shown
from api.value import Value

if TYPE_CHECKING:
    from api.objects import Container

SCHEMES = ("HTTP", "HTTPS")
SIGNALS = frozenset((
    *(one.name for one in signal.Signals),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
))  # fmt: skip
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")


class ExecAction(Value, frozen=True):
    """Run a program in the container, without a shell; exit code 0 is success."""

    command: tuple[str, ...] = ()


class HTTPHeader(Value, frozen=True, omit_defaults=False):
    """One header of a request."""

    name: str
    value: str = ""


class HTTPGetAction(Value, frozen=True):
    """GET a path; 200 to 399 is success.

    `port` is a number or the name of a port of the container; the pod itself is asked unless there is a `host`.
    """

    port: int | str
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Value, frozen=True):
    """Connect; that it can is success."""

    port: int | str
    host: str = ""


class GRPCAction(Value, frozen=True):
    """Ask grpc.health.v1.Health/Check in plain text; SERVING is success."""

    port: int
    service: str | None = None


class SleepAction(Value, frozen=True):
    """Wait."""

    seconds: int


class Probe(Value, frozen=True):
    """One question that is asked again and again; exactly one of the four handlers is set.

    `initial_delay_seconds` pass before it is asked first. `period_seconds` pass from one time to the next, 10 if
    nothing is said. `timeout_seconds` are given for an answer, 1 if nothing is said. `success_threshold` good answers
    in a row are needed after a bad one. `failure_threshold` bad answers in a row are needed after a good one, 3 if
    nothing is said. `termination_grace_period_seconds` replaces that of the pod when the container is ended for it.
    """

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Value, frozen=True):
    """What to do at one moment in a container's life; exactly one is set. `tcp_socket` does nothing, as ever."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    sleep: SleepAction | None = None
    tcp_socket: TCPSocketAction | None = None


class Lifecycle(Value, frozen=True):
    """Hooks: `post_start` when the container has been started, `pre_stop` before it is asked to stop.

    It is asked with `stop_signal`, or as its image says.
    """

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


# --- what is filled in ------------------------------------------------------------------------------------------------


def probe_defaults(probe: Probe | None) -> Probe | None:
    """The probe with every default written out."""
    if probe is None:
        return None
    return replace(
        probe,
        http_get=_http_defaults(probe.http_get),
        grpc=None if probe.grpc is None else replace(probe.grpc, service=probe.grpc.service or ""),
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
    )


def lifecycle_defaults(lifecycle: Lifecycle | None) -> Lifecycle | None:
    """The hooks with every default written out."""
    if lifecycle is None:
        return None
    hooks = {
        name: None if hook is None else replace(hook, http_get=_http_defaults(hook.http_get))
        for name, hook in (("post_start", lifecycle.post_start), ("pre_stop", lifecycle.pre_stop))
    }
    return replace(lifecycle, **hooks)


def _http_defaults(action: HTTPGetAction | None) -> HTTPGetAction | None:
    return None if action is None else replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check(path: str, container: Container, grace: int, on_host: bool) -> Iterator[Problem]:
    """Every problem with a container's probes and hooks.

    `grace` is the pod's grace period; `on_host` tells whether the pod is in its node's network. Only then may another
    host be asked: a node reaches every lane, and would ask on behalf of a pod that may not reach it.
    """
    for place, host in _hosts(path, container):
        if host and not on_host:
            yield Problem(place, shown(host), "only the pod itself is asked; leave this out", FORBIDDEN)
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
        found = shown(container.lifecycle.stop_signal)
        wanted = "a signal such as SIGTERM, SIGUSR1 or SIGRTMIN+3 is accepted"
        yield Problem(f"{path}.lifecycle.stopSignal", found, wanted, NOT_SUPPORTED)


def _probe(path: str, probe: Probe, name: str, ports: Sequence[str]) -> Iterator[Problem]:
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
            yield Problem(f"{path}.{field}", shown(value), "0 or more is accepted")
    if name != "readinessProbe" and probe.success_threshold not in {0, 1}:
        yield Problem(f"{path}.successThreshold", shown(probe.success_threshold), f"only 1 is accepted in a {name}")
    grace = probe.termination_grace_period_seconds
    if grace is not None and name == "readinessProbe":
        wanted = "a readinessProbe ends no container; leave this out"
        yield Problem(f"{path}.terminationGracePeriodSeconds", shown(grace), wanted, FORBIDDEN)
    elif grace is not None and not 1 <= grace < 2**31:
        yield Problem(f"{path}.terminationGracePeriodSeconds", shown(grace), f"1 to {2**31 - 1} seconds are accepted")


def _hook(path: str, hook: LifecycleHandler, ports: Sequence[str], grace: int) -> Iterator[Problem]:
    yield from _one_of(path, hook, ("exec", "httpGet", "sleep", "tcpSocket"))
    yield from _handler(path, hook, ports)
    if hook.sleep is not None and not 0 <= hook.sleep.seconds <= grace:
        wanted = f"0 to {grace} seconds, the pod's terminationGracePeriodSeconds, are accepted"
        yield Problem(f"{path}.sleep.seconds", shown(hook.sleep.seconds), wanted)


def _one_of(path: str, holder: Probe | LifecycleHandler, accepted: tuple[str, ...]) -> Iterator[Problem]:
    wire = {field.encode_name: getattr(holder, field.name) for field in msgspec.structs.fields(type(holder))}
    given = [name for name in accepted if wire[name] is not None]
    if not given:
        yield Problem(path, "{}", f"one of {', '.join(accepted)} is required", MISSING)
    for name in given[1:]:
        yield Problem(f"{path}.{name}", "given", f"only one handler is accepted, and there is {given[0]}", FORBIDDEN)


def _handler(path: str, holder: Probe | LifecycleHandler, ports: Sequence[str]) -> Iterator[Problem]:
    if holder.exec is not None and not holder.exec.command:
        yield Problem(f"{path}.exec.command", "[]", 'a program is required, for example ["cat", "/ready"]', MISSING)
    if holder.http_get is not None:
        yield from _http(f"{path}.httpGet", holder.http_get, ports)
    if holder.tcp_socket is not None:
        yield from _port(f"{path}.tcpSocket.port", holder.tcp_socket.port, ports)


def _http(path: str, action: HTTPGetAction, ports: Sequence[str]) -> Iterator[Problem]:
    yield from _port(f"{path}.port", action.port, ports)
    if action.scheme and action.scheme not in SCHEMES:
        wanted = f"{', '.join(SCHEMES)} are accepted"
        yield Problem(f"{path}.scheme", shown(action.scheme), wanted, NOT_SUPPORTED)
    for number, header in enumerate(action.http_headers):
        place = f"{path}.httpHeaders[{number}]"
        if not _HEADER.fullmatch(header.name):
            wanted = "letters, digits and !#$%&'*+-.^_`|~ are accepted"
            yield Problem(f"{place}.name", shown(header.name), wanted)
        if any(ord(sign) < 32 and sign != "\t" for sign in header.value):
            yield Problem(f"{place}.value", shown(header.value), "a text without control characters is accepted")


def _port(path: str, port: int | str, ports: Sequence[str]) -> Iterator[Problem]:
    if isinstance(port, int):
        if not 1 <= port <= 65535:
            yield Problem(path, shown(port), "a port is 1 to 65535")
    elif port not in ports or not port:
        known = ", ".join(sorted(filter(None, ports))) or "none"
        yield Problem(path, shown(port), f"a number or the name of a port of this container is accepted: {known}")


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
