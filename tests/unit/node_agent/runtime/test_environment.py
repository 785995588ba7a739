"""Sources of a container's environment variables."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from api.core.config import ConfigMap, Secret
from api.core.pod import Pod
from api.core.references import Reference, pod_refs
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import Object, ObjectMeta
from api.validation.registry import decode
from node_agent.runtime.environment import EnvSources, container_env, service_env
from reconcile.errors import Refused
from tests.unit.node_agent.examples import make_pod

CONFIG = ConfigMap(
    metadata=ObjectMeta(name="c"), data={"color": "red", "file.txt": "x", "size": "1"}, binary_data={"raw": b"\xff"}
)
SECRET = Secret(metadata=ObjectMeta(name="s"), data={"word": b"sesame", "color": b"blue"})
OBJECTS: dict[Reference, Object] = {Reference(ConfigMap, "red", "c"): CONFIG, Reference(Secret, "red", "s"): SECRET}
SOURCES = EnvSources(OBJECTS, {"cpu": "4", "memory": str(8 << 30)})


def given(env: str = "[]", env_from: str = "[]", extra: str = "") -> dict[str, str]:
    pod = make_pod(f"[{{name: main, image: a, env: {env}, envFrom: {env_from}{extra}}}]")
    return container_env(pod, pod.spec.containers[0], SOURCES)


def test_env_from_is_applied_first_and_later_sources_override() -> None:
    sources = "[{configMapRef: {name: c}}, {secretRef: {name: s}}, {prefix: P_, secretRef: {name: s}}]"
    env = given("[{name: size, value: 'big $(color) $(P_word)'}]", sources)
    assert env == {
        "color": "blue",
        "file.txt": "x",
        "size": "big blue sesame",
        "word": "sesame",
        "P_word": "sesame",
        "P_color": "blue",
    }


def test_env_values_are_taken_from_single_keys() -> None:
    env = """[{name: A, valueFrom: {configMapKeyRef: {name: c, key: color}}},
              {name: B, valueFrom: {secretKeyRef: {name: s, key: word}}},
              {name: C, valueFrom: {secretKeyRef: {name: s, key: none, optional: true}}},
              {name: D, valueFrom: {configMapKeyRef: {name: none, key: none, optional: true}}}]"""
    assert given(env) == {"A": "red", "B": "sesame"}
    assert given(env_from="[{configMapRef: {name: none, optional: true}}]") == {}


@pytest.mark.parametrize(
    ("env", "env_from", "why"),
    [
        ("[{name: A, valueFrom: {configMapKeyRef: {name: x, key: k}}}]", "[]", 'configmap "x" not found'),
        ("[{name: A, valueFrom: {secretKeyRef: {name: x, key: k}}}]", "[]", 'secret "x" not found'),
        ("[{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", "[]", "couldn't find key k in Secret red/s"),
        ("[]", "[{configMapRef: {name: x}}]", 'configmap "x" not found'),
        ("[{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, containerName: x}}}]", "[]",
         "container 'x' not found"),
    ],
)  # fmt: skip
def test_missing_env_source_is_named(env: str, env_from: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        given(env, env_from)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("ref", "value"),
    [
        ("{resource: limits.cpu}", "2"),
        ("{resource: limits.cpu, divisor: 1m}", "1500"),
        ("{resource: requests.cpu, divisor: 1m}", "1500"),
        ("{resource: limits.memory, divisor: 1Gi}", "8"),
        ("{resource: requests.memory}", "0"),
    ],
)
def test_resource_env_values_are_rounded_up_and_default_to_the_node(ref: str, value: str) -> None:
    env = given(f"[{{name: A, valueFrom: {{resourceFieldRef: {ref}}}}}]", extra=", resources: {limits: {cpu: 1500m}}")
    assert env == {"A": value}


def test_env_references_of_a_pod_name_their_objects() -> None:
    pod = make_pod(
        "[{name: main, image: a, envFrom: [{configMapRef: {name: c}}]}]",
        "  initContainers: [{name: i, image: a, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]",
    )
    assert pod_refs(pod) == OBJECTS.keys()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"env": [{"name": "a=b"}]}, "env[0].name"),
        ({"env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": ""}}}]},
         "env[0].valueFrom.secretKeyRef.key"),
        ({"env": [{"name": "a", "valueFrom": {"configMapKeyRef": {"name": "A_", "key": "k"}}}]},
         "env[0].valueFrom.configMapKeyRef.name"),
        ({"env": [{"name": "a", "valueFrom": {"fileKeyRef": {}}}]}, "env[0].valueFrom.fileKeyRef"),
        ({"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.disk"}}}]},
         "env[0].valueFrom.resourceFieldRef.resource"),
        ({"envFrom": [{}]}, "envFrom[0]"),
        ({"envFrom": [{"configMapRef": {}}]}, "envFrom[0].configMapRef.name"),
        ({"envFrom": [{"prefix": "=", "configMapRef": {"name": "c"}}]}, "envFrom[0].prefix"),
    ],
)  # fmt: skip
def test_invalid_env_source_is_rejected_by_path(fields: dict[str, Any], path: str) -> None:
    container = {"name": "a", "image": "b:1", **fields}
    document = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    assert [error.path for error in decode(Pod, document)[1]] == [f"spec.containers[0].{path}"]


POD = make_pod()


def service(name: str, address: str, *ports: ServicePort, namespace: str = "red") -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace=namespace), spec=ServiceSpec(cluster_ip=address, ports=ports)
    )


WEB = service(
    "web-ui", "172.30.0.9", ServicePort(port=80, name="http-x"), ServicePort(port=53, name="dns", protocol="UDP")
)
MASTER = service("kubernetes", "172.30.0.1", ServicePort(port=443, name="https"), namespace="default")
TOLD = {
    "WEB_UI_SERVICE_HOST": "172.30.0.9",
    "WEB_UI_SERVICE_PORT": "80",
    "WEB_UI_SERVICE_PORT_HTTP_X": "80",
    "WEB_UI_SERVICE_PORT_DNS": "53",
    "WEB_UI_PORT": "tcp://172.30.0.9:80",
    "WEB_UI_PORT_80_TCP": "tcp://172.30.0.9:80",
    "WEB_UI_PORT_80_TCP_PROTO": "tcp",
    "WEB_UI_PORT_80_TCP_PORT": "80",
    "WEB_UI_PORT_80_TCP_ADDR": "172.30.0.9",
    "WEB_UI_PORT_53_UDP": "udp://172.30.0.9:53",
    "WEB_UI_PORT_53_UDP_PROTO": "udp",
    "WEB_UI_PORT_53_UDP_PORT": "53",
    "WEB_UI_PORT_53_UDP_ADDR": "172.30.0.9",
}


def test_service_env_has_every_port() -> None:
    assert service_env(POD, (WEB,)) == TOLD


def test_service_env_has_services_of_the_namespace_and_the_api_server() -> None:
    other_services = (
        service("far", "172.30.0.3", ServicePort(port=1), namespace="blue"),
        service("headless", "None", ServicePort(port=1)),
        service("new", "", ServicePort(port=1)),
        service("portless", "172.30.0.4"),
    )
    env = service_env(POD, (MASTER, *other_services))
    assert {name.partition("_")[0] for name in env} == {"KUBERNETES"}
    other_api_server = service("kubernetes", "172.30.0.77", ServicePort(port=443))
    for order in ((other_api_server, MASTER), (MASTER, other_api_server)):
        assert service_env(POD, order)["KUBERNETES_SERVICE_HOST"] == "172.30.0.77"


def test_service_env_without_service_links_has_the_api_server_only() -> None:
    alone = replace(POD, spec=replace(POD.spec, enable_service_links=False))
    assert service_env(alone, (WEB, MASTER)) == service_env(POD, (MASTER,))


def test_service_env_brackets_ipv6_addresses_before_ports() -> None:
    env = service_env(POD, (service("six", "fd00::9", ServicePort(port=80)),))
    assert (env["SIX_PORT"], env["SIX_SERVICE_HOST"]) == ("tcp://[fd00::9]:80", "fd00::9")
