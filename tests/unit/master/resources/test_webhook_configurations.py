"""Webhook configurations: defaults, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest

from api.meta.schema import FieldError
from api.validation.registry import decode, default
from master.resources.webhook_configurations import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)

RULE: dict[str, Any] = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
WEBHOOK: dict[str, Any] = {
    "name": "a.example.org",
    "clientConfig": {"service": {"namespace": "hooks", "name": "hook"}},
    "rules": [RULE],
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}


def _errors(**changes: Any) -> list[FieldError]:
    document = {"metadata": {"name": "one"}, "webhooks": [{**WEBHOOK, **changes}]}
    return list(decode(MutatingWebhookConfiguration, document, MUTATING_WEBHOOK_CONFIGURATIONS.rules)[1])


def test_defaults_of_a_webhook_are_those_of_kubernetes() -> None:
    document = {"metadata": {"name": "one"}, "webhooks": [WEBHOOK]}
    decoded, errors, _ = decode(MutatingWebhookConfiguration, document, MUTATING_WEBHOOK_CONFIGURATIONS.rules)
    assert decoded is not None
    assert not errors
    (webhook,) = default(decoded, MUTATING_WEBHOOK_CONFIGURATIONS.rules).webhooks
    assert (webhook.failure_policy, webhook.match_policy, webhook.reinvocation_policy) == (
        "Fail",
        "Equivalent",
        "Never",
    )
    assert webhook.timeout_seconds == 10
    assert webhook.rules[0].scope == "*"
    assert webhook.client_config.service is not None
    assert webhook.client_config.service.port == 443


@pytest.mark.parametrize(
    ("changes", "path", "detail"),
    [
        ({"name": "short.name"}, "name", "at least three segments"),
        ({"name": ""}, "name", "required"),
        ({"clientConfig": {}}, "clientConfig", "exactly one of url or service is required"),
        ({"clientConfig": {"url": "https://a/", **WEBHOOK["clientConfig"]}}, "clientConfig", "exactly one"),
        ({"clientConfig": {"url": "http://a.example/x"}}, "clientConfig.url", "'https' is the only allowed URL scheme"),
        ({"clientConfig": {"url": "https://u:p@a.example"}}, "clientConfig.url", "user information is not permitted"),
        ({"clientConfig": {"url": "https://a.example/?q=1"}}, "clientConfig.url", "query parameters are not permitted"),
        ({"clientConfig": {"url": "https://a.example/#f"}}, "clientConfig.url", "fragments are not permitted"),
        ({"clientConfig": {"url": "https://a:99999/"}}, "clientConfig.url", "must be a valid URL"),
        ({"clientConfig": {"service": {"name": "x"}}}, "clientConfig.service.namespace", "is required"),
        (
            {"clientConfig": {"service": {"name": "x", "namespace": "y", "port": 0}}},
            "clientConfig.service.port",
            "between 1 and 65535",
        ),
        (
            {"clientConfig": {"service": {"name": "x", "namespace": "y", "path": "no-slash"}}},
            "clientConfig.service.path",
            "must start with a '/'",
        ),
        ({"sideEffects": "Some"}, "sideEffects", "None, NoneOnDryRun"),
        ({"sideEffects": ""}, "sideEffects", "must specify one of"),
        ({"timeoutSeconds": 31}, "timeoutSeconds", "between 1 and 30 seconds"),
        ({"timeoutSeconds": 0}, "timeoutSeconds", "between 1 and 30 seconds"),
        ({"admissionReviewVersions": []}, "admissionReviewVersions", "must specify one of v1, v1beta1"),
        ({"admissionReviewVersions": ["v2"]}, "admissionReviewVersions", "must include at least one of"),
        ({"failurePolicy": "Maybe"}, "failurePolicy", "Fail, Ignore"),
        ({"reinvocationPolicy": "Always"}, "reinvocationPolicy", "IfNeeded, Never"),
        ({"rules": [{**RULE, "operations": ["*", "CREATE"]}]}, "rules[0].operations", "if '*' is present"),
    ],
)
def test_invalid_webhook_is_refused(changes: dict[str, Any], path: str, detail: str) -> None:
    assert not _errors()
    assert [error for error in _errors(**changes) if error.path == f"webhooks[0].{path}" and detail in error.detail]


def test_two_webhooks_of_one_name_are_refused() -> None:
    document = {"metadata": {"name": "one"}, "webhooks": [WEBHOOK, WEBHOOK]}
    _, errors, _ = decode(ValidatingWebhookConfiguration, document, VALIDATING_WEBHOOK_CONFIGURATIONS.rules)
    assert [error.path for error in errors] == ["webhooks[1].name"]
