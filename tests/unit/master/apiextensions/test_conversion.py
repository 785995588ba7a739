"""What is asked of a conversion webhook, and which results are kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from master.admission.external_calls import CallsPending
from master.admission.webhooks.calls import WebhookTarget
from master.apiextensions.conversion import MAX_KEPT_BYTES, ConversionCall, Conversions, ConversionWebhook, convert

WEBHOOK = ConversionWebhook(("uid", 1), WebhookTarget(None, "https://hook.example.org", b""), "v1")


def call(data: bytes = b"{}", webhook: ConversionWebhook = WEBHOOK) -> ConversionCall:
    return ConversionCall(webhook, "Foo", "example.com/v2", data)


def document(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a", **metadata}, "spec": {}}


def asked(obj: dict[str, Any], known: Conversions | None = None) -> ConversionCall:
    """Return the call that a conversion needs."""
    with pytest.raises(CallsPending) as pending:
        convert(obj, WEBHOOK, "Foo", "example.com/v2", known or Conversions())
    [needed] = pending.value.calls
    assert isinstance(needed, ConversionCall)
    return needed


def test_object_in_the_version_is_not_sent() -> None:
    same = {**document(), "apiVersion": "example.com/v2"}
    assert convert(same, WEBHOOK, "Foo", "example.com/v2", Conversions()) is same


def test_result_serves_each_later_state_that_differs_by_its_revision_only() -> None:
    known = Conversions()
    known.put(asked(document(resourceVersion="1")), msgspec.json.encode({**document(), "spec": {"converted": True}}))
    later = document(resourceVersion="2", managedFields=[{"manager": "m"}], labels={"a": "b"})
    asked(later, known)
    del later["metadata"]["labels"]
    shown = convert(later, WEBHOOK, "Foo", "example.com/v2", known)
    assert shown["spec"] == {"converted": True}
    assert shown["metadata"] == later["metadata"]


def test_results_of_another_state_of_the_definition_are_not_used() -> None:
    known = Conversions()
    known.put(call(), b"{}")
    assert known.of(call()) == b"{}"
    with pytest.raises(CallsPending):
        known.of(call(webhook=ConversionWebhook(("uid", 2), WEBHOOK.target, "v1")))


def test_least_used_results_go_first() -> None:
    known, size = Conversions(), MAX_KEPT_BYTES // 4
    for number in range(3):
        known.put(call(b"%d" % number), b"x" * size)
    known.of(call(b"0"))
    known.put(call(b"0"), b"y" * size)
    known.put(call(b"3"), b"x" * size)
    with pytest.raises(CallsPending):
        known.of(call(b"1"))
    for number in (0, 2, 3):
        assert len(known.of(call(b"%d" % number))) == size
    known.put(call(b"large"), b"x" * 2 * MAX_KEPT_BYTES)
    assert known.of(call(b"large")), "the one that is needed now stays"
