"""The plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook. Pure.

Configurations are ordered by name, webhooks as in their configuration. Mutating webhooks are called one after the
other, after the mutating policies, each with what the last one made. If one changed the object, the built-in plugins
run again, and then, once, the policies and webhooks with IfNeeded after which the object was changed. Validating
webhooks are called at the same time.

The kinds by which one repairs webhooks and policies are exempt. What nodes and controllers do on their own is exempt
from rules with `*`, so that no webhook keeps nodes from registering and beating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api.core.node import Namespace
from api.meta.schema import FieldError, quoted
from master import errors
from master.admission.cel_calls import (
    Decide,
    compile_errors,
    condition_expressions,
    evaluate_policies,
    named,
    request_variables,
)
from master.admission.matching import (
    MatchAttributes,
    ResourceVersion,
    applicable_rules,
    is_exempt,
    match_attributes,
    match_rules,
    matched_resource,
    matches_selectors,
    namespace_of,
)
from master.admission.mutated_objects import Undecodable, decoded_object, document_of, require_size, with_identity
from master.admission.mutating_policies import MutatingAdmissionPolicyPlugin
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.webhooks.calls import CallFailed, Rejection, Verdict, WebhookCall, webhook_target
from master.admission.webhooks.review import group_version_kind, group_version_resource
from master.cel.messages import EvaluatedPolicy, EvaluatePolicy, OutOfBudget
from master.resources.match_resources import IGNORE, MatchCondition
from master.resources.resource import AnyResource, converted
from master.resources.scheme import group_resource
from master.resources.webhook_configurations import (
    DEFAULT_TIMEOUT_SECONDS,
    IF_NEEDED,
    REVIEW_VERSIONS,
    MutatingWebhook,
    MutatingWebhookConfiguration,
    ValidatingWebhook,
    ValidatingWebhookConfiguration,
)
from master.serialization.json_patch import InvalidPatch, json_patch
from master.storage.interface import Transaction

CONTROLLER_USER: Mapping[str, Any] = {"username": "system:kube-controller-manager", "groups": ["system:authenticated"]}
"""The user of writes of the master's own controllers, as webhooks see it."""


@dataclass(frozen=True, slots=True)
class ConfiguredWebhook:
    """A webhook of a configuration. `index` is its place among all of its stage."""

    index: int
    configuration: str
    webhook: ValidatingWebhook


def configured_webhooks(
    of: type[MutatingWebhookConfiguration | ValidatingWebhookConfiguration], objects: Transaction
) -> tuple[ConfiguredWebhook, ...]:
    """Return all webhooks of a stage in their order."""
    configurations = objects.list(group_resource(of))
    if not configurations:
        return ()
    pairs = [
        (configuration.metadata.name, webhook)
        for configuration in sorted(configurations, key=lambda each: each.metadata.name)
        for webhook in configuration.webhooks
    ]
    return tuple(ConfiguredWebhook(index, name, webhook) for index, (name, webhook) in enumerate(pairs))


class MutatingAdmissionWebhook(AdmissionPlugin):
    """Applies mutating policies, then calls mutating webhooks.

    `others` are the built-in plugins, which run again after a change, before policies and webhooks with IfNeeded do.
    """

    sees_actions = True

    def __init__(
        self,
        others: Sequence[AdmissionPlugin],
        decide: Decide | None = None,
        policies: MutatingAdmissionPolicyPlugin | None = None,
    ) -> None:
        self._others = tuple(others)
        self._decide = decide
        self._policies = policies

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Return the object as policies and webhooks change it."""
        webhooks = _webhooks_of(MutatingWebhookConfiguration, request, objects)
        policies = None if self._policies is None else self._policies.begin(request, objects)
        if not webhooks and policies is None:
            return obj
        invocations = _Invocations()
        if policies is not None:
            obj = policies.apply(obj)
        obj = _call_in_turn(webhooks, request, obj, objects, invocations, 0, self._decide)
        if not invocations.has_changed and not (policies is not None and policies.has_changed):
            return obj
        before = obj
        for plugin in self._others:
            obj = plugin.mutate(request, obj, objects)
        if policies is not None:
            obj = policies.apply_again(obj)
        if obj != before:
            invocations.require_previous()
        return _call_in_turn(webhooks, request, obj, objects, invocations, 1, self._decide)

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Call the webhooks for what has no object to change: a delete, a connection, an action."""
        if request.operation not in (Operation.DELETE, Operation.CONNECT) and request.body is None:
            return
        webhooks = _webhooks_of(MutatingWebhookConfiguration, request, objects)
        _call_in_turn(webhooks, request, obj, objects, _Invocations(), 0, self._decide)


class ValidatingAdmissionWebhook(AdmissionPlugin):
    """Calls validating webhooks, and rejects the write with the first rejection in their order.

    `decide` answers what match conditions ask the authorizer.
    """

    sees_actions = True

    def __init__(self, decide: Decide | None = None) -> None:
        self._decide = decide

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Call the webhooks that the write matches."""
        if isinstance(obj, MutatingWebhookConfiguration | ValidatingWebhookConfiguration):
            _check_conditions(request, obj)
        webhooks = _webhooks_of(ValidatingWebhookConfiguration, request, objects)
        if not webhooks:
            return
        attributes, questions = match_attributes(request, obj, objects), _Questions(request, obj)
        chosen = [
            (each, matched) for each in webhooks if (matched := _match(each.webhook, request, attributes)) is not None
        ]
        fulfilled = _fulfil(chosen, request, obj, objects, self._decide)
        asked = [(each, _call(each.webhook, matched, questions)) for each, matched in fulfilled]
        assert request.external is not None
        results = request.external.results_of([call for _, call in asked])
        rejections = []
        for (each, call), result in zip(asked, results, strict=True):
            given = result
            if isinstance(result, Verdict) and result.has_patch:
                given = CallFailed("validating webhook may not return response.patch")
            try:
                _verdict(each, call, given, request, "validating", 0)
            except errors.StatusError as error:
                rejections.append(error)
        if rejections:
            raise rejections[0]


# --- which webhooks ---------------------------------------------------------------------------------------------------


def _webhooks_of(
    of: type[MutatingWebhookConfiguration | ValidatingWebhookConfiguration],
    request: AdmissionRequest,
    objects: Transaction,
) -> tuple[ConfiguredWebhook, ...]:
    if request.external is None or is_exempt(request.resource):
        return ()
    return configured_webhooks(of, objects)


def _match(
    webhook: ValidatingWebhook, request: AdmissionRequest, attributes: MatchAttributes
) -> ResourceVersion | None:
    """Return as which resource a webhook is asked about a write; None if it is not asked."""
    if not matches_selectors(webhook.namespace_selector, webhook.object_selector, attributes):
        return None
    return match_rules(applicable_rules(webhook.rules, request), webhook.match_policy, attributes)


Chosen = tuple[ConfiguredWebhook, ResourceVersion]
"""A webhook, and the resource as which it is asked."""


def _fulfil(
    chosen: Sequence[Chosen], request: AdmissionRequest, obj: Any, objects: Transaction, decide: Decide | None
) -> list[Chosen]:
    """Return the webhooks whose match conditions a write fulfils. Raises Forbidden if one cannot be evaluated."""
    conditional = [(each, matched) for each, matched in chosen if each.webhook.match_conditions]
    if not conditional:
        return list(chosen)
    namespace = namespace_of(request, obj, objects)
    questions = [
        EvaluatePolicy(
            conditions=named(each.webhook.match_conditions),
            **request_variables(  # type: ignore[arg-type]
                request, obj, resource=matched_resource(request, matched), namespace=namespace
            ),
        )
        for each, matched in conditional
    ]
    skipped = {
        each.index
        for (each, _), answer in zip(conditional, evaluate_policies(questions, request, obj, decide), strict=True)
        if not _is_fulfilled(each.webhook, answer, request, obj)
    }
    return [(each, matched) for each, matched in chosen if each.index not in skipped]


def _is_fulfilled(
    webhook: ValidatingWebhook, answer: EvaluatedPolicy | OutOfBudget, request: AdmissionRequest, obj: Any
) -> bool:
    """Return whether a webhook is to be called. Raises Forbidden if that is not known and its policy is Fail."""
    if isinstance(answer, OutOfBudget):
        problem = answer.reason
    elif not answer.matches:
        return False
    elif answer.condition_errors:
        problem = "; ".join(f"matchCondition {name!r}: {error}" for name, error in answer.condition_errors)
    else:
        return True
    if webhook.failure_policy == IGNORE:
        return False
    text = f'failed to evaluate match conditions of webhook "{webhook.name}": {problem}'
    raise errors.forbidden(request.resource, obj.metadata.name, text)


def _check_conditions(
    request: AdmissionRequest, configuration: MutatingWebhookConfiguration | ValidatingWebhookConfiguration
) -> None:
    """Require that new match conditions compile. Raises 422 and CallsPending."""
    if request.external is None or request.operation not in (Operation.CREATE, Operation.UPDATE):
        return
    known = set() if request.old is None else {condition for _, condition in _conditions(request.old)}
    new = [(path, condition) for path, condition in _conditions(configuration) if condition not in known]
    if not new:
        return
    compiled = compile_errors(condition_expressions([condition for _, condition in new]), request, configuration)
    problems = [
        FieldError(path, quoted(condition.expression), problem)
        for (path, condition), problem in zip(new, compiled, strict=True)
        if problem
    ]
    if problems:
        raise errors.invalid(request.resource, configuration.metadata.name, problems)


def _conditions(
    configuration: MutatingWebhookConfiguration | ValidatingWebhookConfiguration,
) -> Iterator[tuple[str, MatchCondition]]:
    for number, webhook in enumerate(configuration.webhooks):
        for index, condition in enumerate(webhook.match_conditions):
            yield f"webhooks[{number}].matchConditions[{index}].expression", condition


# --- calling ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Invocations:
    """Which webhooks are to be called again. Each has a number, its index."""

    has_changed: bool = False
    previous: set[int] = field(default_factory=set)
    """Those with IfNeeded that were called since the last change."""
    required: set[int] = field(default_factory=set)

    def require_previous(self) -> None:
        """Let those that were called before be called again, because the object has changed."""
        self.required |= self.previous
        self.previous.clear()


def _call_in_turn(
    webhooks: Sequence[ConfiguredWebhook],
    request: AdmissionRequest,
    obj: Any,
    objects: Transaction,
    invocations: _Invocations,
    round_number: int,
    decide: Decide | None,
) -> Any:
    """Return the object after the webhooks, in their order. In round 1 only those are called that are required."""
    attributes: MatchAttributes | None = None
    questions = _Questions(request, obj)
    for each in webhooks:
        if round_number and each.index not in invocations.required:
            continue
        attributes = attributes or match_attributes(request, obj, objects)
        matched = _match(each.webhook, request, attributes)
        if matched is None or not _fulfil([(each, matched)], request, obj, objects, decide):
            continue
        call = _call(each.webhook, matched, questions)
        assert request.external is not None
        (result,) = request.external.results_of((call,))
        verdict = _verdict(each, call, result, request, "mutation", round_number)
        new = obj
        if verdict is not None and verdict.patch and _has_object(request):
            new = _patched(each.webhook.name, request, obj, matched, verdict)
        is_changed = new != obj
        if verdict is not None:
            _annotate_mutation(each, request, verdict, round_number, is_changed=is_changed)
        if is_changed:
            obj, attributes, invocations.has_changed = new, None, True
            questions = _Questions(request, obj)
            invocations.require_previous()
        if isinstance(each.webhook, MutatingWebhook) and each.webhook.reinvocation_policy == IF_NEEDED:
            invocations.previous.add(each.index)
    return obj


def _has_object(request: AdmissionRequest) -> bool:
    """Return whether a webhook can change the object of a write."""
    return request.operation in (Operation.CREATE, Operation.UPDATE) and request.body is None


class _Questions:
    """The JSON of the request about an object, as each resource. It is encoded once for all webhooks."""

    def __init__(self, request: AdmissionRequest, obj: Any) -> None:
        self._request = request
        self._obj = obj
        self._encoded: dict[ResourceVersion, bytes] = {}

    def about(self, matched: ResourceVersion) -> bytes:
        """Return the request about the object as that of a resource."""
        if matched not in self._encoded:
            self._encoded[matched] = review_request(self._request, self._obj, matched)
        return self._encoded[matched]


def _call(webhook: ValidatingWebhook, matched: ResourceVersion, questions: _Questions) -> WebhookCall:
    version = next(each for each in webhook.admission_review_versions if each in REVIEW_VERSIONS)
    seconds = webhook.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    return WebhookCall(webhook_target(webhook.client_config), version, questions.about(matched), seconds)


def review_request(request: AdmissionRequest, obj: Any, matched: ResourceVersion) -> bytes:
    """Return the JSON of the request in an AdmissionReview, without its uid."""
    resource, asked = request.resource, matched_resource(request, matched)
    new, old = (None, obj) if request.operation is Operation.DELETE else (obj, request.old)
    subresource = resource.subresource(request.subresource) if request.subresource else None
    kind, request_kind = group_version_kind(asked), group_version_kind(resource)
    named = obj if obj is not None else request.old
    if subresource is not None and subresource.body_kind is not None:
        kind = request_kind = dict(zip(("group", "version", "kind"), subresource.body_kind, strict=True))
        new, old = request.body, None
    else:
        new, old = _as(asked, resource, new), _as(asked, resource, old)
    namespace = named.metadata.name if resource.is_stored_as(Namespace) else named.metadata.namespace
    # Kubernetes leaves out these when they are empty, and webhooks take an empty text for the name of a subresource.
    optional = {
        "subResource": request.subresource,
        "requestSubResource": request.subresource,
        "name": named.metadata.name,
        "namespace": namespace,
    }
    return msgspec.json.encode(
        {
            "kind": kind,
            "resource": group_version_resource(asked),
            "requestKind": request_kind,
            "requestResource": group_version_resource(resource),
            **{name: text for name, text in optional.items() if text},
            "operation": str(request.operation),
            "userInfo": user_info(request),
            "object": new,
            "oldObject": old if request.operation is not Operation.CONNECT else None,
            "dryRun": request.is_dry_run,
            "options": request.options,
        }
    )


def user_info(request: AdmissionRequest) -> Mapping[str, Any]:
    """Return the user of a write as a review names it."""
    if request.requester is None:
        return CONTROLLER_USER
    user = request.requester.user
    info: dict[str, Any] = {"username": user.name, "groups": sorted(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    return info


def _as(asked: AnyResource, resource: AnyResource, obj: Any) -> Any:
    """Return an object of a resource as that of another version."""
    return None if obj is None else converted(obj, resource, asked)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _verdict(
    each: ConfiguredWebhook,
    call: WebhookCall,
    result: Verdict | CallFailed,
    request: AdmissionRequest,
    stage: str,
    round_number: int,
) -> Verdict | None:
    """Return the verdict of a webhook that accepts; None if it failed and is ignored. Raises StatusError."""
    webhook = each.webhook
    if isinstance(result, CallFailed):
        if webhook.failure_policy == IGNORE:
            key = f"failed-open.{stage}.webhook.admission.k8s.io/round_{round_number}_index_{each.index}"
            request.annotate(key, webhook.name)
            return None
        text = f'failed calling webhook "{webhook.name}": {result.error}'
        raise errors.internal_error(text)
    for warning in result.warnings:
        request.warn(warning)
    for key, value in result.audit_annotations:
        request.annotate(f"{webhook.name}/{key}", value)
    if result.rejection is not None:
        raise rejection_error(webhook.name, result.rejection)
    return result


def rejection_error(name: str, rejection: Rejection) -> errors.StatusError:
    """Return the error of a write that a webhook rejects."""
    text, said = f'admission webhook "{name}" denied the request', rejection.message or rejection.reason
    code = rejection.code if 400 <= rejection.code < 600 else 400
    return errors.status_error(code, rejection.reason, f"{text}: {said}" if said else f"{text} without explanation")


def _annotate_mutation(
    each: ConfiguredWebhook, request: AdmissionRequest, verdict: Verdict, round_number: int, *, is_changed: bool
) -> None:
    place = f"webhook.admission.k8s.io/round_{round_number}_index_{each.index}"
    about = {"configuration": each.configuration, "webhook": each.webhook.name, "mutated": is_changed}
    request.annotate(f"mutation.{place}", msgspec.json.encode(about).decode())
    if is_changed:
        text = {**about, "patch": list(verdict.patch), "patchType": "JSONPatch"}
        del text["mutated"]
        encoded = msgspec.json.encode(text).decode()
        if len(encoded) <= MAX_ANNOTATED_PATCH:
            request.annotate(f"patch.{place}", encoded)


MAX_ANNOTATED_PATCH = 64 << 10
"""Characters of a patch in the audit events of a request."""


# --- patches ----------------------------------------------------------------------------------------------------------


def _patched(name: str, request: AdmissionRequest, obj: Any, matched: ResourceVersion, verdict: Verdict) -> Any:
    """Return the object after the patch of a webhook: without unknown fields, with defaults. Raises StatusError."""
    resource, asked = request.resource, matched_resource(request, matched)
    try:
        document = json_patch(document_of(_as(asked, resource, obj)), list(verdict.patch))
    except InvalidPatch as error:
        raise errors.internal_error(f'the patch of webhook "{name}" cannot be applied: {error}') from error
    try:
        require_size(document)
        new = decoded_object(asked, document)
    except Undecodable as error:
        raise errors.internal_error(f'the object after webhook "{name}" {error}') from error
    return with_identity(f'webhook "{name}"', request, converted(new, asked, resource), obj)
