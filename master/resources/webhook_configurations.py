"""MutatingWebhookConfiguration and ValidatingWebhookConfiguration. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import (
    DUPLICATE,
    MISSING,
    NOT_SUPPORTED,
    TOO_MANY,
    FieldError,
    quoted,
    unsupported_values,
)
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Object, Value, merge_keys
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.client_config import WebhookClientConfig, check_client_config, default_client_config
from master.resources.match_resources import (
    ADMISSION_GROUP,
    ANY,
    EQUIVALENT,
    EXACT,
    FAIL,
    IGNORE,
    MatchConditions,
    RuleWithOperations,
    check_match_condition_names,
    check_rules,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource

NEVER, IF_NEEDED = "Never", "IfNeeded"
NO_SIDE_EFFECTS, NONE_ON_DRY_RUN = SIDE_EFFECTS = ("None", "NoneOnDryRun")
REVIEW_VERSIONS = ("v1", "v1beta1")
"""Versions of AdmissionReview that the master sends, the preferred one first."""

DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 10, 30
MAX_WEBHOOKS = 100
"""Webhooks of one configuration. Kubernetes has no limit; each write is compared with all."""


class ValidatingWebhook(Value, frozen=True):
    """A webhook that accepts or rejects requests.

    `name` is a domain name of three segments or more. `client_config` says where it is. `rules`, the selectors and
    `match_conditions` choose the requests. `failure_policy` (Fail or Ignore) says what happens if it cannot be asked.
    With the `match_policy` Equivalent a rule also chooses requests for the same objects in another version.
    `side_effects` is None or NoneOnDryRun. `timeout_seconds` is 1 to 30. `admission_review_versions` are the versions
    that it understands, of which v1 and v1beta1 are sent.
    """

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] = ()
    failure_policy: str = ""
    match_policy: str = ""
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str = ""
    timeout_seconds: Int32 | None = None
    admission_review_versions: tuple[str, ...] = ()
    match_conditions: MatchConditions = ()


class MutatingWebhook(ValidatingWebhook, frozen=True):
    """A webhook that changes requests.

    With the `reinvocation_policy` IfNeeded it is called once more if others changed the object after it.
    """

    reinvocation_policy: str = ""


class ValidatingWebhookConfiguration(Object, frozen=True):
    """Webhooks that accept or reject requests. They are called at the same time, and all must accept."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "ValidatingWebhookConfiguration"
    PLURAL = "validatingwebhookconfigurations"
    NAMESPACED = False

    webhooks: Annotated[tuple[ValidatingWebhook, ...], merge_keys("name")] = ()


class MutatingWebhookConfiguration(Object, frozen=True):
    """Webhooks that change requests. They are called one after the other, in the order of this list."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "MutatingWebhookConfiguration"
    PLURAL = "mutatingwebhookconfigurations"
    NAMESPACED = False

    webhooks: Annotated[tuple[MutatingWebhook, ...], merge_keys("name")] = ()


W = TypeVar("W", bound=ValidatingWebhook)


def _default_webhook(webhook: W) -> W:
    return replace(
        webhook,
        client_config=default_client_config(webhook.client_config),
        rules=tuple(replace(rule, scope=rule.scope or ANY) for rule in webhook.rules),
        failure_policy=webhook.failure_policy or FAIL,
        match_policy=webhook.match_policy or EQUIVALENT,
        namespace_selector=webhook.namespace_selector or LabelSelector(),
        object_selector=webhook.object_selector or LabelSelector(),
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if webhook.timeout_seconds is None else webhook.timeout_seconds,
    )


def _default_validating(configuration: ValidatingWebhookConfiguration) -> ValidatingWebhookConfiguration:
    return replace(configuration, webhooks=tuple(map(_default_webhook, configuration.webhooks)))


def _default_mutating(configuration: MutatingWebhookConfiguration) -> MutatingWebhookConfiguration:
    webhooks = tuple(
        replace(_default_webhook(webhook), reinvocation_policy=webhook.reinvocation_policy or NEVER)
        for webhook in configuration.webhooks
    )
    return replace(configuration, webhooks=webhooks)


def _check_numbers(
    configuration: ValidatingWebhookConfiguration | MutatingWebhookConfiguration,
) -> Iterator[FieldError]:
    number = len(configuration.webhooks)
    if number > MAX_WEBHOOKS:
        yield FieldError("webhooks", str(number), f"must have at most {MAX_WEBHOOKS} items", TOO_MANY)


def _validate(configuration: ValidatingWebhookConfiguration | MutatingWebhookConfiguration) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, webhook in enumerate(configuration.webhooks):
        path = f"webhooks[{index}]"
        yield from _check_name(f"{path}.name", webhook.name, seen)
        yield from check_rules(f"{path}.rules", webhook.rules)
        yield from _check_enumerations(path, webhook)
        yield from _check_versions(f"{path}.admissionReviewVersions", webhook.admission_review_versions)
        if webhook.timeout_seconds is not None and not 1 <= webhook.timeout_seconds <= MAX_TIMEOUT_SECONDS:
            detail = f"the timeout value must be between 1 and {MAX_TIMEOUT_SECONDS} seconds"
            yield FieldError(f"{path}.timeoutSeconds", quoted(webhook.timeout_seconds), detail)
        for name, selector in (
            ("namespaceSelector", webhook.namespace_selector),
            ("objectSelector", webhook.object_selector),
        ):
            if selector is not None:
                yield from check_selector(f"{path}.{name}", selector)
        yield from check_client_config(f"{path}.clientConfig", webhook.client_config)
        yield from check_match_condition_names(f"{path}.matchConditions", webhook.match_conditions)


def _check_name(path: str, name: str, seen: set[str]) -> Iterator[FieldError]:
    if not name:
        yield FieldError(path, '""', "a value is required", MISSING)
    elif error := names.dns_subdomain_error(name):
        yield FieldError(path, quoted(name), error)
    elif name.count(".") < 2:
        yield FieldError(path, quoted(name), "should be a domain with at least three segments separated by dots")
    if name in seen:
        yield FieldError(path, quoted(name), "must be unique", DUPLICATE)
    seen.add(name)


def _check_enumerations(path: str, webhook: ValidatingWebhook) -> Iterator[FieldError]:
    yield from unsupported_values(
        (f"{path}.failurePolicy", webhook.failure_policy, (FAIL, IGNORE)),
        (f"{path}.matchPolicy", webhook.match_policy, (EQUIVALENT, EXACT)),
        (f"{path}.sideEffects", webhook.side_effects, SIDE_EFFECTS),
    )
    if not webhook.side_effects:
        yield FieldError(f"{path}.sideEffects", '""', f"must specify one of {', '.join(SIDE_EFFECTS)}", MISSING)
    if isinstance(webhook, MutatingWebhook):
        yield from unsupported_values((f"{path}.reinvocationPolicy", webhook.reinvocation_policy, (IF_NEEDED, NEVER)))


def _check_versions(path: str, versions: Sequence[str]) -> Iterator[FieldError]:
    accepted = ", ".join(REVIEW_VERSIONS)
    if not versions:
        yield FieldError(path, "[]", f"must specify one of {accepted}", MISSING)
        return
    seen: set[str] = set()
    for index, version in enumerate(versions):
        if version in seen:
            yield FieldError(f"{path}[{index}]", quoted(version), "duplicate version")
        elif error := names.dns_1035_label_error(version):
            yield FieldError(f"{path}[{index}]", quoted(version), error)
        seen.add(version)
    if seen.isdisjoint(REVIEW_VERSIONS):
        yield FieldError(path, quoted(versions), f"must include at least one of {accepted}", NOT_SUPPORTED)


_COLUMNS = (
    NAME,
    Column("Webhooks", "Number of webhooks.", lambda configuration, _: len(configuration.webhooks), type="integer"),
    AGE,
)


def _webhooks(configuration: Any) -> Any:
    return configuration.webhooks


VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    type=ValidatingWebhookConfiguration,
    categories=("api-extensions",),
    columns=_COLUMNS,
    rules=KindRules(_default_validating, _validate, check_numbers=_check_numbers),
    spec=_webhooks,
    acted_on_by="the master, which calls the webhooks for each write that they choose",
)

MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    type=MutatingWebhookConfiguration,
    categories=("api-extensions",),
    columns=_COLUMNS,
    rules=KindRules(_default_mutating, _validate, check_numbers=_check_numbers),
    spec=_webhooks,
    acted_on_by="the master, which calls the webhooks for each write that they choose",
)
