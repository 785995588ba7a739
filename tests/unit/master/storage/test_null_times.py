"""Mending of stored objects that clients in Go cannot decode."""

from __future__ import annotations

import msgspec
import pytest

from api.core.node import Node
from api.core.services import Service
from api.core.storage import PersistentVolume
from api.meta.types import Object
from master.storage.null_times import with_null_times

CONDITION = '{"type":"Ready","status":"True","lastTransitionTime":%s}'


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (Service, '{"status":{"conditions":[' + CONDITION + "]}}"),
        (Node, '{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%s}]}}'),
        (PersistentVolume, '{"status":{"lastPhaseTransitionTime":%s}}'),
    ],
)
def test_time_that_is_an_empty_text_becomes_null(of: type[Object], text: str) -> None:
    document = with_null_times((text % '""').encode(), of)
    assert msgspec.json.decode(document) == msgspec.json.decode(text % "null")
    msgspec.json.decode(document, type=of)


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata":{"labels":{"lastTransitionTime":""}}}',
        '{"status":{"conditions":[' + CONDITION % '"2026-01-01T00:00:00Z"' + "]}}",
        '{"status":{"unknownTime":""}}',
        '{"status":"lastTransitionTime":""}',
    ],
)
def test_other_text_stays(text: str) -> None:
    assert with_null_times(text.encode(), Service) == text.encode()
