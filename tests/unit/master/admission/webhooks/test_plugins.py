"""Which writes reach webhooks, and what their verdicts do."""

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
from master.admission.cel_calls import request_document
from master.admission.external_calls import CallsPending, ExternalResults
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.webhooks.calls import CallFailed, Rejection, Verdict, WebhookCall, WebhookResult
from master.admission.webhooks.plugins import MutatingAdmissionWebhook, ValidatingAdmissionWebhook, rejection_error
from master.errors import StatusError
from master.resources.configuration import CONFIG_MAPS
from master.resources.namespaces import NAMESPACES
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, BY_PATH, group_resource
from master.resources.webhook_configurations import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from master.storage.interface import Key, Transaction

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RULE = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
LEASE = Lease(metadata=ObjectMeta(name="n1", namespace="red"))
CONFIG_MAP = default(ConfigMap(metadata=ObjectMeta(name="one", namespace="red")))


class Objects:
    """Stored objects in memory."""

    def __init__(self, *objects: Object) -> None:
        self._objects = (Namespace(metadata=ObjectMeta(name="red", labels={"team": "red"})), *objects)

    def list(self, resource: Any, namespace: str = "") -> list[Any]:
        return [obj for obj in self._objects if group_resource(type(obj)) == resource]

    def get(self, key: Key) -> Any:
        return next((obj for obj in self.list(key.resource) if obj.metadata.name == key.name), None)


def webhook(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": f"{name}.example.org", "clientConfig": {"url": f"https://hooks.example/{name}"}, "rules": [RULE],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], **changes,
    }  # fmt: skip


def mutating(*webhooks: dict[str, Any]) -> Objects:
    document = {"metadata": {"name": "one"}, "webhooks": webhooks}
    configuration = msgspec.convert(document, MutatingWebhookConfiguration)
    return Objects(default(configuration, MUTATING_WEBHOOK_CONFIGURATIONS.rules))


def validating(*webhooks: dict[str, Any]) -> Objects:
    document = {"metadata": {"name": "one"}, "webhooks": webhooks}
    configuration = msgspec.convert(document, ValidatingWebhookConfiguration)
    return Objects(default(configuration, VALIDATING_WEBHOOK_CONFIGURATIONS.rules))


def letters(text: str) -> Verdict:
    return Verdict(patch=({"op": "add", "path": "/data", "value": {"seen": text}},), has_patch=True)


def append(call: WebhookCall) -> Verdict:
    """Append the last letter of the URL to what was seen."""
    seen = msgspec.json.decode(call.request)["object"].get("data", {}).get("seen", "")
    return letters(seen + call.target.url[-1])


def run(
    plugin: AdmissionPlugin,
    objects: Objects,
    answer: Callable[[WebhookCall], WebhookResult],
    obj: Any = CONFIG_MAP,
    resource: AnyResource = CONFIG_MAPS,
    **changes: Any,
) -> tuple[Any, list[str]]:
    """Return the object after a create, and the URLs that were called."""
    external, called = ExternalResults(), list[str]()
    request = AdmissionRequest(
        operation=Operation.CREATE, resource=resource, now=NOW, random_suffix=lambda: "xxxxx",
        external=external, **changes,
    )  # fmt: skip
    while True:
        try:
            transaction = cast("Transaction", objects)
            after = plugin.mutate(request, obj, transaction)
            plugin.validate(request, after, transaction)
        except CallsPending as pending:
            calls = cast("tuple[WebhookCall, ...]", pending.calls)
            called += [call.target.url[-1] for call in calls]
            external.put(calls, [answer(call) for call in calls])
        else:
            return after, called


class Label(AdmissionPlugin):
    """A built-in plugin that counts its runs."""

    runs = 0

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        self.runs += 1
        return obj


@pytest.mark.parametrize(
    ("policies", "called"),
    [
        (("Never", "Never"), "ab"),
        (("IfNeeded", "Never"), "aba"),
        (("Never", "IfNeeded"), "ab"),
        (("IfNeeded", "IfNeeded"), "abab"),
    ],
)
def test_webhooks_are_called_in_order_and_at_most_once_more(policies: tuple[str, str], called: str) -> None:
    objects = mutating(*(webhook(name, reinvocationPolicy=policy) for name, policy in zip("ab", policies, strict=True)))
    after, order = run(MutatingAdmissionWebhook((builtin := Label(),)), objects, append)
    assert "".join(order) == called
    assert after.data == {"seen": called}
    assert builtin.runs


def test_webhook_that_changes_nothing_lets_nothing_run_again() -> None:
    builtin = Label()
    after, order = run(MutatingAdmissionWebhook((builtin,)), mutating(webhook("a")), lambda _: Verdict())
    assert (after, order, builtin.runs) == (CONFIG_MAP, ["a"], 0)


def test_validating_webhooks_are_called_at_the_same_time_and_the_first_rejection_counts() -> None:
    objects = validating(webhook("a"), webhook("b"), webhook("c"))
    rounds: list[int] = []

    def answer(call: WebhookCall) -> WebhookResult:
        rounds.append(1)
        return Verdict() if call.target.url.endswith("a") else Verdict(Rejection(message=call.target.url[-1]))

    with pytest.raises(StatusError, match=r'"b\.example\.org" denied the request: b'):
        run(ValidatingAdmissionWebhook(), objects, answer)
    assert len(rounds) == 3


@pytest.mark.parametrize(
    ("rejection", "code", "message"),
    [
        (Rejection(), 400, "without explanation"),
        (Rejection(200, "", "no"), 400, "denied the request: no"),
        (Rejection(403, "Forbidden"), 403, "denied the request: Forbidden"),
        (Rejection(9999, "", "no"), 400, "denied the request: no"),
    ],
)
def test_rejection_has_the_code_and_words_of_the_webhook(rejection: Rejection, code: int, message: str) -> None:
    error = rejection_error("a.example.org", rejection)
    assert error.status.code == code
    assert error.status.message.endswith(message)


def test_failed_call_rejects_the_write_or_is_recorded_as_the_policy_says() -> None:
    failed, annotations = CallFailed("failed to call webhook: why"), dict[str, str]()
    with pytest.raises(StatusError, match=r'failed calling webhook "a\.example\.org": failed to call webhook: why'):
        run(ValidatingAdmissionWebhook(), validating(webhook("a")), lambda _: failed)
    objects = validating(webhook("a", failurePolicy="Ignore"))
    run(ValidatingAdmissionWebhook(), objects, lambda _: failed, annotate=annotations.__setitem__)
    assert annotations == {"failed-open.validating.webhook.admission.k8s.io/round_0_index_0": "a.example.org"}


def test_rules_with_a_wildcard_do_not_choose_what_controllers_and_nodes_write_on_their_own() -> None:
    leases = BY_KIND["Lease"]
    named = {**RULE, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    for rule, called in ((RULE, []), (named, ["a"])):
        objects = validating(webhook("a", rules=[rule]))
        assert run(ValidatingAdmissionWebhook(), objects, lambda _: Verdict(), LEASE, leases)[1] == called
    assert run(ValidatingAdmissionWebhook(), validating(webhook("a")), lambda _: Verdict())[1] == ["a"]


def test_what_a_request_does_not_have_is_left_out_of_the_review_and_of_the_variable_of_policies() -> None:
    reviews: list[dict[str, Any]] = []

    def answer(call: WebhookCall) -> WebhookResult:
        reviews.append(msgspec.json.decode(call.request))
        return Verdict()

    run(ValidatingAdmissionWebhook(), validating(webhook("a")), answer)
    run(
        ValidatingAdmissionWebhook(),
        validating(webhook("a")),
        answer,
        Namespace(metadata=ObjectMeta(name="red")),
        NAMESPACES,
        subresource="finalize",
    )
    first, second = reviews
    assert {"subResource", "requestSubResource"} & first.keys() == set()
    assert (first["name"], first["namespace"], first["oldObject"]) == ("one", "red", None)
    assert second["subResource"] == second["requestSubResource"] == "finalize"
    request = AdmissionRequest(operation=Operation.CREATE, resource=NAMESPACES, now=NOW, random_suffix=lambda: "x")
    variable = request_document(request, Namespace(metadata=ObjectMeta(generate_name="red-")), NAMESPACES)
    assert {"subResource", "requestSubResource", "name", "namespace"} & variable.keys() == set()


def test_webhook_configurations_and_writes_without_external_calls_reach_no_webhook() -> None:
    configuration = MutatingWebhookConfiguration(metadata=ObjectMeta(name="any"))
    objects, rejected = validating(webhook("a")), Verdict(Rejection())
    run(ValidatingAdmissionWebhook(), objects, lambda _: rejected, configuration, MUTATING_WEBHOOK_CONFIGURATIONS)
    request = AdmissionRequest(
        operation=Operation.CREATE, resource=CONFIG_MAPS, now=NOW, random_suffix=lambda: "xxxxx"
    )  # fmt: skip
    ValidatingAdmissionWebhook().validate(request, CONFIG_MAP, cast("Transaction", objects))


def test_object_of_another_version_says_which_and_comes_back_as_the_own() -> None:
    resource = BY_PATH["autoscaling", "v1", "horizontalpodautoscalers"]
    document = {"metadata": {"name": "one", "namespace": "red"}, "spec": {"maxReplicas": 3}}
    obj = default(msgspec.convert(document, resource.type), resource.rules)
    rule = {**RULE, "apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["horizontalpodautoscalers"]}
    seen: list[dict[str, Any]] = []

    def patch(call: WebhookCall) -> Verdict:
        seen.append(msgspec.json.decode(call.request)["object"])
        return Verdict(patch=({"op": "add", "path": "/spec/minReplicas", "value": 2},), has_patch=True)

    after, _ = run(MutatingAdmissionWebhook(()), mutating(webhook("a", rules=[rule])), patch, obj, resource)
    assert (seen[0]["apiVersion"], seen[0]["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    assert (after.api_version, after.kind, after.spec.min_replicas) == ("autoscaling/v1", "HorizontalPodAutoscaler", 2)
