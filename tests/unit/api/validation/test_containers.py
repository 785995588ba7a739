"""Probes and lifecycle hooks: their defaults, and every error by path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.core.pod import Container, Pod
from api.validation.registry import decode, default

HTTP = {"httpGet": {"port": 80}}


def pod(fields: dict[str, Any], **spec: Any) -> dict[str, Any]:
    container = {"name": "a", "image": "b:1", "ports": [{"containerPort": 8080, "name": "web"}], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def container(fields: dict[str, Any]) -> Container:
    obj, problems, warnings = decode(Pod, pod(fields))
    assert obj is not None, problems
    assert not warnings
    return default(obj).spec.containers[0]


def error_messages(fields: dict[str, Any], **spec: Any) -> list[str]:
    return [str(problem).removeprefix("spec.containers[0].") for problem in decode(Pod, pod(fields, **spec))[1]]


def test_probe_defaults_are_set_once() -> None:
    probe = container({"livenessProbe": {"httpGet": {"port": "web"}}}).liveness_probe
    assert msgspec.to_builtins(probe) == {
        "httpGet": {"port": "web", "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    grpc = container({"startupProbe": {"grpc": {"port": 9}, "periodSeconds": 1, "failureThreshold": 30}}).startup_probe
    assert msgspec.to_builtins(grpc) == {
        "grpc": {"port": 9, "service": ""},
        "timeoutSeconds": 1,
        "periodSeconds": 1,
        "successThreshold": 1,
        "failureThreshold": 30,
    }
    lifecycle = container({"lifecycle": {"preStop": HTTP}}).lifecycle
    assert msgspec.to_builtins(lifecycle) == {"preStop": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}}}
    obj = msgspec.convert(pod({"readinessProbe": HTTP, "lifecycle": {"postStart": HTTP}}), Pod)
    assert default(default(obj)) == default(obj)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ({}, "livenessProbe: is missing; one of exec, httpGet, tcpSocket, grpc is required"),
        (
            {**HTTP, "grpc": {"port": 1}},
            "livenessProbe.grpc: is given; only one handler is accepted, and there is httpGet",
        ),
        (
            {"exec": {}},
            'livenessProbe.exec.command: is missing; a program is required, for example ["cat", "/ready"]',
        ),
        ({"httpGet": {"port": 0}}, "livenessProbe.httpGet.port: is 0; a port is 1 to 65535"),
        ({"grpc": {"port": 65536}}, "livenessProbe.grpc.port: is 65536; a port is 1 to 65535"),
        (
            {"tcpSocket": {"port": "db"}},
            'livenessProbe.tcpSocket.port: is "db"; a number or the name of a port of this container is accepted: web',
        ),
        (
            {"tcpSocket": {"port": 1, "host": "10.0.0.1"}},
            'livenessProbe.tcpSocket.host: is "10.0.0.1"; probes and hooks reach only the pod; omit the host',
        ),
        (
            {"httpGet": {"port": 80, "host": "other.pod"}},
            'livenessProbe.httpGet.host: is "other.pod"; probes and hooks reach only the pod; omit the host',
        ),
        (
            {"httpGet": {"port": 80, "scheme": "ftp"}},
            'livenessProbe.httpGet.scheme: is "ftp"; HTTP, HTTPS are accepted',
        ),
        (
            {"httpGet": {"port": 80, "httpHeaders": [{"name": "a b"}]}},
            'livenessProbe.httpGet.httpHeaders[0].name: is "a b"; letters, digits and !#$%&\'*+-.^_`|~ are accepted',
        ),
        (
            {"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "b\nc: d"}]}},
            'livenessProbe.httpGet.httpHeaders[0].value: is "b\\nc: d"; a text without control characters is accepted',
        ),
        ({**HTTP, "periodSeconds": -1}, "livenessProbe.periodSeconds: is -1; 0 or more is accepted"),
        (
            {**HTTP, "successThreshold": 2},
            "livenessProbe.successThreshold: is 2; only 1 is accepted in a livenessProbe",
        ),
        (
            {**HTTP, "terminationGracePeriodSeconds": 0},
            "livenessProbe.terminationGracePeriodSeconds: is 0; 1 to 2147483647 seconds are accepted",
        ),
        ({**HTTP, "period": 1}, 'livenessProbe.period: is not a field; did you mean "periodSeconds"?'),
    ],
)
def test_invalid_probe_is_rejected_with_a_message(probe: dict[str, Any], words: str) -> None:
    assert error_messages({"livenessProbe": probe}) == [words]


def test_probe_host_is_accepted_for_host_network_pods_only() -> None:
    tcp = {"livenessProbe": {"tcpSocket": {"port": 1, "host": "10.0.0.1"}}}
    hook = {"lifecycle": {"preStop": {"httpGet": {"port": 1, "host": "10.0.0.1"}}}}
    assert error_messages({**tcp, **hook}, hostNetwork=True) == []
    assert [message.partition(":")[0] for message in error_messages({**tcp, **hook})] == [
        "livenessProbe.tcpSocket.host",
        "lifecycle.preStop.httpGet.host",
    ]


def test_readiness_probe_accepts_success_threshold_and_no_grace_period() -> None:
    assert error_messages({"readinessProbe": {**HTTP, "successThreshold": 2}}) == []
    assert error_messages({"readinessProbe": {**HTTP, "terminationGracePeriodSeconds": 5}}) == [
        "readinessProbe.terminationGracePeriodSeconds: is 5; a readinessProbe ends no container; leave this out"
    ]


@pytest.mark.parametrize(
    ("lifecycle", "words"),
    [
        ({"preStop": {}}, "lifecycle.preStop: is missing; one of exec, httpGet, sleep, tcpSocket is required"),
        (
            {"postStart": {"sleep": {"seconds": 31}}},
            "lifecycle.postStart.sleep.seconds: "
            "is 31; 0 to 30 seconds, the pod's terminationGracePeriodSeconds, are accepted",
        ),
        (
            {"stopSignal": "SIGNAL"},
            'lifecycle.stopSignal: is "SIGNAL"; a signal such as SIGTERM, SIGUSR1 or SIGRTMIN+3 is accepted',
        ),
        (
            {"preStop": {"httpGet": {"port": "x"}}},
            'lifecycle.preStop.httpGet.port: is "x"; a number or the name of a port of this container is accepted: web',
        ),
    ],
)
def test_invalid_lifecycle_hook_is_rejected_with_a_message(lifecycle: dict[str, Any], words: str) -> None:
    assert error_messages({"lifecycle": lifecycle}) == [words]


def test_sleep_hook_is_limited_by_the_pods_grace_period() -> None:
    hook = {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}
    assert error_messages(hook, terminationGracePeriodSeconds=5) == []
    assert error_messages(hook, terminationGracePeriodSeconds=4)[0].endswith(
        "0 to 4 seconds, the pod's terminationGracePeriodSeconds, are accepted"
    )
