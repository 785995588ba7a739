"""The values that the agent reads from the labels of a container."""

from __future__ import annotations

import dataclasses

import pytest

from node_agent.runtime import container as label
from tests.unit.node_agent.examples import make_container, make_pod


@pytest.mark.parametrize("text", ["abc", "-1", "", "１", "9" * 40])
def test_invalid_number_in_a_label_counts_as_zero(text: str) -> None:
    container = dataclasses.replace(
        make_container(make_pod()), labels={label.RESTARTS: text, label.CRASHES: text, label.ATTEMPT: text}
    )
    assert (container.restart_count, container.crash_label, container.attempt) == (0, 0, 0)


def test_labels_of_a_pod_are_those_of_its_sandbox() -> None:
    sandbox = {label.POD_UID: "u1", label.ATTEMPT: "0", label.TYPE: label.SANDBOX_TYPE}
    main = {label.POD_UID: "u1", label.CRASHES: "0", label.TYPE: label.CONTAINER_TYPE}
    lone = {label.POD_UID: "u2", label.CRASHES: "3"}
    assert label.labels_by_pod([sandbox, main, lone]) == {"u1": sandbox, "u2": lone}
    assert label.labels_by_pod([lone, main, sandbox]) == {"u1": sandbox, "u2": lone}
    assert label.labels_by_pod([{label.POD_UID: "u3"}, {label.ATTEMPT: "0"}]) == {}


def test_label_of_an_image_makes_no_sandbox() -> None:
    sandbox = {label.POD_UID: "u1", label.ATTEMPT: "0", label.TYPE: label.SANDBOX_TYPE}
    main = {label.POD_UID: "u1", label.CRASHES: "0", label.TYPE: label.CONTAINER_TYPE, label.ATTEMPT: "7"}
    assert label.labels_by_pod([sandbox, main]) == label.labels_by_pod([main, sandbox]) == {"u1": sandbox}
