"""Mutating policies with the CEL worker for real: what their expressions make of a Deployment, as in Kubernetes."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from api.core.node import Namespace
from api.meta.types import Object, ObjectMeta
from api.validation.registry import default
from master.admission.cel_calls import CELCall
from master.admission.external_calls import CallsPending, ExternalResults
from master.admission.mutating_policies import MutatingAdmissionPolicyPlugin
from master.admission.plugin import AdmissionRequest, Operation
from master.auth.attributes import Decision, User
from master.auth.rbac import Requester
from master.cel.evaluator import CELEvaluator
from master.errors import StatusError
from master.resources.mutating_policies import (
    MUTATING_ADMISSION_POLICIES,
    MUTATING_ADMISSION_POLICY_BINDINGS,
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
)
from master.resources.scheme import BY_KIND, group_resource
from master.storage.interface import Key, Transaction

DEPLOYMENTS = BY_KIND["Deployment"]
RULE = {"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def evaluator() -> AsyncIterator[CELEvaluator]:
    client = CELEvaluator()
    yield client
    await client.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


class Objects:
    """Stored objects in memory."""

    def __init__(self, *objects: Object) -> None:
        self._objects = (Namespace(metadata=ObjectMeta(name="red")), *objects)

    def list(self, resource: Any, namespace: str = "") -> list[Any]:
        return [obj for obj in self._objects if group_resource(type(obj)) == resource]

    def get(self, key: Key) -> Any:
        return next((obj for obj in self.list(key.resource) if obj.metadata.name == key.name), None)


def deployment(*containers: str, replicas: int = 1, labels: dict[str, str] | None = None, **pod: Any) -> Any:
    document = {
        "metadata": {"name": "d1", "namespace": "red", **({"labels": labels} if labels else {})},
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": name} for name in containers], **pod}},
        },
    }
    return default(msgspec.convert(document, DEPLOYMENTS.type), DEPLOYMENTS.rules)


async def mutated(evaluator: CELEvaluator, obj: Any, *mutations: str, old: Any = None, **spec: Any) -> Any:
    """Return the object after a policy. A mutation in brackets is a JSON patch."""
    listed = [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": text}}
        if text.lstrip().startswith("[")
        else {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}}
        for text in mutations
    ]
    document = {
        "matchConstraints": {"resourceRules": [RULE]},
        "mutations": listed,
        "reinvocationPolicy": "Never",
        **spec,
    }
    policy = msgspec.convert({"metadata": {"name": "p"}, "spec": document}, MutatingAdmissionPolicy)
    binding = msgspec.convert({"metadata": {"name": "b"}, "spec": {"policyName": "p"}}, MutatingAdmissionPolicyBinding)
    objects = Objects(
        default(policy, MUTATING_ADMISSION_POLICIES.rules), default(binding, MUTATING_ADMISSION_POLICY_BINDINGS.rules)
    )
    request = AdmissionRequest(
        operation=Operation.CREATE if old is None else Operation.UPDATE,
        resource=DEPLOYMENTS,
        now=NOW,
        random_suffix=lambda: "xxxxx",
        old=old,
        requester=Requester(User("alice"), lambda _: False, lambda _: (), lambda *_: None),
        external=ExternalResults(),
    )
    transaction = cast("Transaction", objects)
    plugin = MutatingAdmissionPolicyPlugin(lambda _, asked: Decision(getattr(asked, "resource", "") == "endpoints"))
    while True:
        try:
            policies = plugin.begin(request, transaction)
            assert policies is not None
            return policies.apply(obj)
        except CallsPending as pending:
            assert request.external is not None
            for call in pending.calls:
                request.external.put((call,), (await evaluator.ask(cast("CELCall", call).question),))


def containers(*names: str) -> dict[str, Any]:
    return {"containers": list(names)}


def summary(obj: Any) -> dict[str, Any]:
    """Return what the cases below compare."""
    pod = obj.spec.template.spec
    found = {
        "replicas": obj.spec.replicas if obj.spec.replicas != 1 else None,
        "labels": dict(obj.metadata.labels),
        "containers": [each.name for each in pod.containers],
        "volumes": [each.name for each in pod.volumes],
    }
    return {key: value for key, value in found.items() if value}


def patch(*operations: str) -> str:
    return "[" + ", ".join(f"JSONPatch{{{operation}}}" for operation in operations) + "]"


CONTAINERS = "/spec/template/spec/containers"
XY = {"x": "1", "y": "1"}
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "false test": (
        deployment(),
        patch('op: "test", path: "/spec/replicas", value: 9', 'op: "replace", path: "/spec/replicas", value: 3'),
        {},
    ),
    "true test": (
        deployment(),
        patch('op: "test", path: "/spec/replicas", value: 1', 'op: "replace", path: "/spec/replicas", value: 3'),
        {"replicas": 3},
    ),
    "remove, and the default": (deployment(replicas=5), patch('op: "remove", path: "/spec/replicas"'), {}),
    "remove from a map": (
        deployment(labels=XY), patch('op: "remove", path: "/metadata/labels/y"'), {"labels": {"x": "1"}},
    ),
    "remove from a list": (
        deployment("a", "b", "c"), patch(f'op: "remove", path: "{CONTAINERS}/1"'), containers("a", "c"),
    ),
    "copy in a map": (
        deployment(labels={"x": "1"}), patch('op: "copy", from: "/metadata/labels/x", path: "/metadata/labels/y"'),
        {"labels": XY},
    ),
    "move to the end of a list": (
        deployment("a", "b", "c"), patch(f'op: "move", from: "{CONTAINERS}/0", path: "{CONTAINERS}/-"'),
        containers("b", "c", "a"),
    ),
    "add replaces a map": (
        deployment(labels=XY), patch('op: "add", path: "/metadata/labels", value: {"z": "2"}'), {"labels": {"z": "2"}},
    ),
    "add to the start": (
        deployment("a"), patch(f'op: "add", path: "{CONTAINERS}/0", value: {{"name": "x"}}'), containers("x", "a"),
    ),
    "replace in a map": (
        deployment(labels={"y": "1"}), patch('op: "replace", path: "/metadata/labels/x", value: "2"'),
        {"labels": {"x": "2", "y": "1"}},
    ),
    "an object as value": (
        deployment("a"),
        patch(f"""op: "add", path: "{CONTAINERS}/-", value: Object.spec.template.spec.containers{{
            name: "x", ports: [Object.spec.template.spec.containers.ports{{containerPort: 8080}}]}}"""),
        containers("a", "x"),
    ),
    "fields of operations": (
        deployment(),
        patch("""op: "add", path: "/metadata/labels", value: {
            "op": JSONPatch{op: "o"}.op, "path": JSONPatch{path: "p"}.path, "from": JSONPatch{from: "f"}.from,
            "value": string(JSONPatch{value: "v"}.value), "has": string(has(JSONPatch{op: "o"}.op)),
            "not": string(has(JSONPatch{}.op)), "field": Object{field: "x"}.field,
            "equal": string(JSONPatch{op: "a", value: 1} == JSONPatch{op: "a", value: 1}),
            "different": string(JSONPatch{op: "a", value: "1"} == JSONPatch{op: "a", value: 1})}"""),
        {"labels": {"op": "o", "path": "p", "from": "f", "value": "v", "has": "true", "not": "false", "field": "x",
                    "equal": "true", "different": "false"}},
    ),
    "request": (
        deployment(),
        patch("""op: "replace", path: "/spec/replicas",
            value: request.kind.group == "apps" && request.operation == "CREATE"
                && request.userInfo.username == "alice" ? 10 : 0"""),
        {"replicas": 10},
    ),
    "authorizer": (
        deployment(),
        patch("""op: "replace", path: "/spec/replicas",
            value: authorizer.group("").resource("endpoints").check("create").allowed()
                && !authorizer.group("").resource("pods").check("create").allowed() ? 10 : 0"""),
        {"replicas": 10},
    ),
    "a new item": (
        deployment(volumes=[{"name": "x"}]),
        """Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            volumes: [Object.spec.template.spec.volumes{name: "y"}]}}}}""",
        {"volumes": ["x", "y"]},
    ),
    "a condition": (
        deployment(replicas=2),
        "Object{spec: Object.spec{replicas: object.spec.replicas % 2 == 0 ? object.spec.replicas + 1 : 0}}",
        {"replicas": 3},
    ),
    "everything": (
        deployment(),
        """Object{
            metadata: Object.metadata{labels: {"app": "nginx"}},
            spec: Object.spec{
                replicas: 4,
                template: Object.spec.template{spec: Object.spec.template.spec{
                    containers: [Object.spec.template.spec.containers{
                        name: "nginx", image: "nginx:1.14.2",
                        ports: [Object.spec.template.spec.containers.ports{containerPort: 80}],
                        resources: Object.spec.template.spec.containers.resources{limits: {"cpu": "128M"}},
                    }]
                }}
            }
        }""",
        {"replicas": 4, "labels": {"app": "nginx"}, **containers("nginx")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a_mutation_changes_an_object_as_in_kubernetes(evaluator: CELEvaluator, name: str) -> None:
    obj, mutation, expected = CASES[name]
    assert summary(await mutated(evaluator, obj, mutation)) == expected


async def test_mutations_variables_and_the_old_object_work_together(evaluator: CELEvaluator) -> None:
    add = "Object{spec: Object.spec{replicas: object.spec.replicas + variables.more}}"
    multiply = patch('op: "replace", path: "/spec/replicas", value: object.spec.replicas * 10')
    variables = [{"name": "more", "expression": "100"}, {"name": "unused", "expression": "object.nothing"}]
    after = await mutated(evaluator, deployment(), add, multiply, variables=variables)
    assert after.spec.replicas == 1010
    after = await mutated(evaluator, deployment(), multiply, add, variables=variables)
    assert after.spec.replicas == 110
    old = "Object{spec: Object.spec{replicas: oldObject.spec.replicas + 1}}"
    assert (await mutated(evaluator, deployment(), old, old=deployment(replicas=7))).spec.replicas == 8


async def test_an_item_that_is_named_twice_becomes_one_when_it_is_changed(evaluator: CELEvaluator) -> None:
    twice = {
        "name": "n",
        "env": [{"name": "t", "value": "a"}, {"name": "t", "value": "b"}, {"name": "f", "value": "b"}],
    }
    document = {"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [twice]}}}}
    obj = default(msgspec.convert(document, DEPLOYMENTS.type), DEPLOYMENTS.rules)

    def env(after: Any) -> list[tuple[str, str]]:
        return [(each.name, each.value) for each in after.spec.template.spec.containers[0].env]

    other = "Object{spec: Object.spec{replicas: 3}}"
    assert env(await mutated(evaluator, obj, other)) == [("t", "a"), ("t", "b"), ("f", "b")]
    this = """Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
        containers: [Object.spec.template.spec.containers{
            name: "n", env: [Object.spec.template.spec.containers.env{name: "t", value: "c"}]}]}}}}"""
    assert env(await mutated(evaluator, obj, this)) == [("t", "c"), ("f", "b")]


LOOPS = "variables.l.all(a, variables.l.all(b, variables.l.all(c, variables.l.all(d, variables.l.all(e, a < 10)))))"


@pytest.mark.parametrize(
    ("mutation", "error"),
    [
        (patch(f'op: "replace", path: "{CONTAINERS}/-", value: {{"name": "x"}}'), "JSONPath: operation 0"),
        (
            patch(f"""op: "add", path: "{CONTAINERS}/-", value: Object.spec.template.spec.containers{{
                name: "x", ports: [Object.spec.template.spec.containers.ports{{containerPortZ: 8080}}]}}"""),
            'strict decoding error: unknown field "spec.template.spec.containers[1].ports[0].containerPortZ"',
        ),
        (
            patch("""op: "add", path: "/spec", value: Object.spec{a: [Object.spec.b{}]}"""),
            'type mismatch: unexpected type name "Object.spec.b", expected "Object.spec.a", which matches field name '
            "path from root Object type",
        ),
        (
            "Object{spec: Object.specx{replicas: 1}}",
            'type mismatch: unexpected type name "Object.specx", expected "Object.spec", which matches field name path '
            "from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicasx: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.replicasx: field not declared "
            "in schema",
        ),
        (
            "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'l': 'v'}}}}",
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: "
            ".spec.selector",
        ),
        (f"Object{{spec: Object.spec{{replicas: {LOOPS} ? 1 : 0}}}}", "cancelled: actual cost limit exceeded"),
        ("'teapot'", "unsupported return type from ApplyConfiguration expression"),
        ("Object{spec: Object.spec{replicas: '1'}}", ".spec.replicas: "),
    ],
)  # fmt: skip
async def test_a_mutation_that_fails_says_why_as_in_kubernetes(
    evaluator: CELEvaluator, mutation: str, error: str
) -> None:
    variables = [{"name": "l", "expression": "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"}]
    with pytest.raises(StatusError) as raised:
        await mutated(evaluator, deployment("a"), mutation, variables=variables)
    assert error in raised.value.status.message
