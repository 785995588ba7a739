"""Which mutating policies are applied to a write, in which order, and what their patches do."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from api.core.config import ConfigMap
from api.core.node import Lease, Namespace
from api.meta.types import Object, ObjectMeta
from api.validation.registry import default
from master.admission import mutating_policies
from master.admission.cel_calls import CELCall
from master.admission.external_calls import CallsPending, ExternalResults
from master.admission.mutating_policies import MutatingAdmissionPolicyPlugin
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.webhooks.calls import Verdict, WebhookCall
from master.admission.webhooks.plugins import MutatingAdmissionWebhook
from master.cel.messages import EvaluatedPolicy, EvaluatePolicy, OutOfBudget, Patch
from master.errors import StatusError
from master.resources.configuration import CONFIG_MAPS
from master.resources.merge import merge
from master.resources.mutating_policies import (
    MUTATING_ADMISSION_POLICIES,
    MUTATING_ADMISSION_POLICY_BINDINGS,
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
)
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, group_resource
from master.resources.webhook_configurations import MUTATING_WEBHOOK_CONFIGURATIONS, MutatingWebhookConfiguration
from master.storage.interface import Key, Transaction

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RULE = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
CONFIG_MAP = default(ConfigMap(metadata=ObjectMeta(name="one", namespace="red")))
Answer = EvaluatedPolicy | OutOfBudget


class Objects:
    """Stored objects in memory."""

    def __init__(self, *objects: Object) -> None:
        self._objects = (Namespace(metadata=ObjectMeta(name="red", labels={"team": "red"})), *objects)

    def list(self, resource: Any, namespace: str = "") -> list[Any]:
        return [obj for obj in self._objects if group_resource(type(obj)) == resource]

    def get(self, key: Key) -> Any:
        return next((obj for obj in self.list(key.resource) if obj.metadata.name == key.name), None)


def bound(name: str, *expressions: str, patch_type: str = "ApplyConfiguration", **changes: Any) -> tuple[Object, ...]:
    """Return a policy with a binding. The expressions are names that tests answer."""
    kind = "jsonPatch" if patch_type == "JSONPatch" else "applyConfiguration"
    spec = {
        "matchConstraints": {"resourceRules": [RULE]},
        "mutations": [{"patchType": patch_type, kind: {"expression": each}} for each in expressions or (name,)],
        "reinvocationPolicy": "Never",
        **changes,
    }
    policy = msgspec.convert({"metadata": {"name": name}, "spec": spec}, MutatingAdmissionPolicy)
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    return (
        default(policy, MUTATING_ADMISSION_POLICIES.rules),
        default(msgspec.convert(binding, MutatingAdmissionPolicyBinding), MUTATING_ADMISSION_POLICY_BINDINGS.rules),
    )


def webhook(name: str, **changes: Any) -> Object:
    hook = {
        "name": f"{name}.example.org", "clientConfig": {"url": f"https://hooks.example/{name}"}, "rules": [RULE],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], **changes,
    }  # fmt: skip
    configuration = msgspec.convert({"metadata": {"name": name}, "webhooks": [hook]}, MutatingWebhookConfiguration)
    return default(configuration, MUTATING_WEBHOOK_CONFIGURATIONS.rules)


def seen(document: bytes, what: str) -> dict[str, str]:
    obj = msgspec.json.decode(document)
    data = obj.get("object", obj).get("data", {})
    return {"seen": data.get("seen", "") + what}


def append(question: EvaluatePolicy) -> Answer:
    """Append the name of the mutation to what was seen."""
    assert question.mutation is not None
    return patched({"data": seen(question.obj, question.mutation.text)})


def patched(document: Any) -> EvaluatedPolicy:
    return EvaluatedPolicy(patch=Patch(document=msgspec.json.encode(document)))


def run(
    objects: Objects,
    answer: Callable[[EvaluatePolicy], Answer] = append,
    others: tuple[AdmissionPlugin, ...] = (),
    obj: Any = CONFIG_MAP,
    resource: AnyResource = CONFIG_MAPS,
    **changes: Any,
) -> tuple[Any, list[EvaluatePolicy]]:
    """Return the object after a create, and the questions that the CEL worker was asked. A webhook appends its name."""
    external, asked = ExternalResults(), list[EvaluatePolicy]()
    plugin = MutatingAdmissionWebhook(others, None, MutatingAdmissionPolicyPlugin(None))
    fields: dict[str, Any] = {"operation": Operation.CREATE, "external": external, **changes}
    request = AdmissionRequest(resource=resource, now=NOW, random_suffix=lambda: "xxxxx", **fields)
    while True:
        try:
            return plugin.mutate(request, obj, cast("Transaction", objects)), asked
        except CallsPending as pending:
            for call in pending.calls:
                if isinstance(call, CELCall):
                    question = cast("EvaluatePolicy", call.question)
                    asked.append(question)
                    external.put((call,), (answer(question),))
                else:
                    assert isinstance(call, WebhookCall)
                    patch = {"op": "add", "path": "/data", "value": seen(call.request, call.target.url[-1])}
                    external.put((call,), (Verdict(patch=(patch,), has_patch=True),))


def names(asked: list[EvaluatePolicy]) -> str:
    return "".join(question.mutation.text for question in asked if question.mutation is not None)


class Count(AdmissionPlugin):
    """A built-in plugin that counts its runs, and changes what ends with a letter."""

    def __init__(self, changes: str = "") -> None:
        self.runs = set[str]()
        self._changes = changes

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        text = obj.data.get("seen", "")
        self.runs.add(text)
        if self._changes and text.endswith(self._changes):
            return msgspec.structs.replace(obj, data={"seen": text + "!"})
        return obj


@pytest.mark.parametrize(
    ("policies", "seen"),
    [
        (("Never", "Never"), "ab"),
        (("IfNeeded", "Never"), "aba"),
        (("Never", "IfNeeded"), "abb"),
        (("IfNeeded", "IfNeeded"), "abab"),
    ],
)
def test_policies_are_applied_in_order_and_at_most_once_more(policies: tuple[str, str], seen: str) -> None:
    made = [bound(name, reinvocationPolicy=policy) for name, policy in zip("ab", policies, strict=True)]
    after, _ = run(Objects(*made[1], *made[0]), others=(builtin := Count(),))
    assert after.data == {"seen": seen}
    assert builtin.runs == {"ab"}


def test_a_policy_that_changes_nothing_lets_nothing_run_again() -> None:
    after, asked = run(
        Objects(*bound("a", reinvocationPolicy="IfNeeded")), lambda _: patched({}), (builtin := Count(),)
    )
    assert (after, names(asked), builtin.runs) == (CONFIG_MAP, "a", set())


def test_policies_come_before_webhooks_and_each_is_asked_again_after_a_change_of_the_other() -> None:
    policy, hook = bound("p", reinvocationPolicy="IfNeeded"), webhook("w", reinvocationPolicy="IfNeeded")
    after, _ = run(Objects(hook, *policy))
    assert after.data == {"seen": "pwpw"}
    after, _ = run(Objects(webhook("w"), *bound("p")))
    assert after.data == {"seen": "pw"}
    after, _ = run(Objects(webhook("w"), *bound("p", reinvocationPolicy="IfNeeded")), others=(Count("w"),))
    assert after.data == {"seen": "pw!p"}
    after, _ = run(Objects(webhook("w")), others=(Count("w"),))
    assert after.data == {"seen": "w!"}, "without policies webhooks work as before"


def test_mutations_of_a_policy_see_those_before_and_the_conditions_are_asked_once() -> None:
    conditions = [{"name": "c", "expression": "object.x"}]
    after, asked = run(Objects(*bound("a", "1", "2", "3", matchConditions=conditions)))
    assert after.data == {"seen": "123"}
    assert [len(question.conditions) for question in asked] == [1, 0, 0]


def test_a_policy_that_does_not_match_makes_no_mutation() -> None:
    after, asked = run(Objects(*bound("a", "1", "2")), lambda _: EvaluatedPolicy(matches=False))
    assert (after, names(asked)) == (CONFIG_MAP, "1")


@pytest.mark.parametrize(
    ("answer", "message", "reason"),
    [
        (EvaluatedPolicy(patch=Patch(error="why")), "why", "Invalid"),
        (EvaluatedPolicy(condition_errors=(("c", "why"),)), "failed to evaluate match conditions", "Invalid"),
        (OutOfBudget(), "running out of cost budget", "Invalid"),
        (patched({"nope": 1}), ".nope: field not declared in schema", "Invalid"),
        (patched({"data": {str(number): "" for number in range(10_001)}}), "more than 10000 values", "Invalid"),
    ],
)
def test_a_failure_denies_unless_failures_are_ignored(answer: Answer, message: str, reason: str) -> None:
    with pytest.raises(StatusError, match=message) as raised:
        run(Objects(*bound("a")), lambda _: answer)
    assert (raised.value.status.code, raised.value.status.reason) == (403, reason)
    assert raised.value.status.message.startswith("policy 'a' with binding 'a' denied request: ")
    after, _ = run(Objects(*bound("a", failurePolicy="Ignore")), lambda _: answer)
    assert after == CONFIG_MAP


def test_all_failures_are_causes_and_the_first_is_the_message() -> None:
    with pytest.raises(StatusError) as raised:
        run(Objects(*bound("a"), *bound("b", failurePolicy="Ignore"), *bound("c")), lambda question: EvaluatedPolicy(
            patch=Patch(error=str(question.mutation and question.mutation.text))
        ))  # fmt: skip
    status = raised.value.status
    prefix = "policy '{0}' with binding '{0}' denied request: {0}"
    assert status.message == prefix.format("a")
    assert status.details is not None
    assert [cause.message for cause in status.details.causes] == [prefix.format("a"), prefix.format("c")]


def test_nothing_is_asked_about_what_policies_may_not_change() -> None:
    objects = Objects(*bound("a"))
    assert names(run(objects)[1]) == "a"
    assert run(objects, operation=Operation.DELETE)[1] == []
    assert run(objects, operation=Operation.CONNECT)[1] == []
    assert run(objects, external=None)[1] == []
    exempt = MutatingAdmissionPolicyBinding(metadata=ObjectMeta(name="x"))
    assert run(objects, obj=exempt, resource=MUTATING_ADMISSION_POLICY_BINDINGS)[1] == []
    lease = Lease(metadata=ObjectMeta(name="n1", namespace="red"))
    assert run(objects, obj=lease, resource=BY_KIND["Lease"])[1] == []
    named = {**RULE, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    chosen = Objects(*bound("a", matchConstraints={"resourceRules": [named]}))
    assert names(run(chosen, lambda _: patched({}), obj=lease, resource=BY_KIND["Lease"])[1]) == "a"
    assert run(Objects(bound("a")[1]))[1] == [], "a binding without a policy"
    assert run(Objects(bound("a")[0]))[1] == [], "a policy without a binding"


def test_a_patch_is_applied_once_although_the_write_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Any] = []

    def counting(*given: Any) -> Any:
        applied.append(given)
        return merge(*given)

    monkeypatch.setattr(mutating_policies, "merge", counting)
    after, asked = run(Objects(*bound("a", *"12345")))
    assert after.data == {"seen": "12345"}
    assert (len(asked), len(applied)) == (5, 5)


OPERATIONS = [
    ([{"op": "add", "path": "/data/b", "value": "2"}], {"a": "1", "b": "2"}),
    ([{"op": "replace", "path": "/data/b", "value": "2"}], {"a": "1", "b": "2"}),
    ([{"op": "test", "path": "/data/a", "value": "2"}, {"op": "remove", "path": "/data/a"}], {"a": "1"}),
    ([{"op": "test", "path": "/data/b", "value": "2"}, {"op": "remove", "path": "/data/a"}], {"a": "1"}),
    ([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}], {}),
    ([], {"a": "1"}),
]


@pytest.mark.parametrize(("operations", "data"), OPERATIONS)
def test_a_json_patch_changes_all_or_nothing(operations: Any, data: Any) -> None:
    obj = msgspec.structs.replace(CONFIG_MAP, data={"a": "1"})
    after, _ = run(Objects(*bound("a", patch_type="JSONPatch")), lambda _: patched(operations), obj=obj)
    assert after.data == data


@pytest.mark.parametrize(
    ("operations", "code", "message"),
    [
        ([{"op": "remove", "path": "/data/b"}], 403, "JSONPath: operation 0 "),
        ([{"op": "test", "path": "/x/y", "value": 1}], 403, "JSONPath: operation 0 "),
        ([{"op": "", "path": ""}], 403, "JSONPath: operation 0 "),
        ([{"op": "add", "path": "/datax", "value": {}}], 500, 'strict decoding error: unknown field "datax"'),
        ([{"op": "add", "path": "/data", "value": 1}], 500, "cannot be decoded"),
        ([{"op": "replace", "path": "/apiVersion", "value": "v2"}], 500, "another apiVersion or kind"),
        ([{"op": "replace", "path": "/metadata/name", "value": "x"}], 422, "may not change it"),
        (
            [{"op": "add", "path": "/data", "value": {str(n): "" for n in range(30_001)}}], 500,
            "has more than 30000 values",
        ),
        (
            [{"op": "copy", "from": "/data", "path": f"/data/{n}"} for n in range(40)], 403,
            "the patch copies more than",
        ),
    ],
)  # fmt: skip
def test_a_json_patch_that_makes_no_object_is_refused(operations: Any, code: int, message: str) -> None:
    obj = msgspec.structs.replace(CONFIG_MAP, data={"a": "x" * 1000})
    with pytest.raises(StatusError, match=message) as raised:
        run(Objects(*bound("a", patch_type="JSONPatch")), lambda _: patched(operations), obj=obj)
    assert raised.value.status.code == code


def test_metadata_of_the_server_is_kept() -> None:
    given = {"metadata": {"generation": 7, "creationTimestamp": "2020-01-01T00:00:00Z", "labels": {"a": "b"}}}
    after, _ = run(Objects(*bound("a")), lambda _: patched(given))
    assert after.metadata == msgspec.structs.replace(CONFIG_MAP.metadata, labels={"a": "b"})
