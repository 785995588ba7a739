from __future__ import annotations

import dataclasses
import logging

import pytest
from msgspec.structs import replace

from node_agent.runtime import container as label
from node_agent.runtime.spec import sandbox_config
from node_agent.runtime.termination import MAX_GRACE_SECONDS, grace_period_seconds
from reconcile.errors import Gone, NotReady
from reconcile.loop import containing_bugs
from tests.unit.node_agent.make import container, pod
from tests.unit.node_agent.test_containers import HOST


async def test_a_bug_is_logged_and_the_work_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong() -> None:
        raise ValueError("nobody foresaw this")

    async def gone() -> None:
        raise Gone("Docker: no such container")

    with caplog.at_level(logging.ERROR), pytest.raises(NotReady, match="ValueError: nobody foresaw this"):
        await containing_bugs("red/web", wrong)()
    assert "Traceback" in caplog.text
    with pytest.raises(Gone):
        await containing_bugs("red/web", gone)()


def test_no_annotation_or_label_of_a_pod_stands_in_for_ours() -> None:
    wish = pod()
    theirs = {key.removeprefix("annotation."): "abc" for key in label.RESERVED_LABELS}
    meta = replace(
        wish.metadata, annotations={**theirs, "note": "kept"}, labels=dict.fromkeys(label.RESERVED_LABELS, "abc")
    )
    spec = sandbox_config(replace(wish, metadata=meta), "pause", 0, HOST)
    assert spec.labels["annotation.note"] == "kept"
    assert "abc" not in spec.labels.values()


@pytest.mark.parametrize("text", ["abc", "-1", "", "１", "9" * 40])
def test_a_number_that_is_none_counts_as_nothing(text: str) -> None:
    one = dataclasses.replace(container(pod()), labels={label.RESTARTS: text, label.CRASHES: text, label.ATTEMPT: text})
    assert (one.restarts, one.crashes, one.attempt) == (0, 0, 0)


def test_a_grace_period_without_bound_is_a_life_long() -> None:
    wish = pod()
    endless = replace(wish, spec=replace(wish.spec, termination_grace_period_seconds=10**17))
    assert grace_period_seconds(endless, 0, leaving=False) == MAX_GRACE_SECONDS
