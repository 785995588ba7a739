"""JSON of an API server: null means absent, and invalid documents are rejected with a message."""

from __future__ import annotations

import pytest

from api.codec.json import DecodeError, decode_json
from api.core.pod import Pod
from api.meta.types import List

CASES: list[tuple[str, object]] = [
    ('{"spec":{"containers":null},"status":{}}', ()),
    ('{"metadata":null,"spec":{"containers":[{"name":"a","env":null,"resources":{}}],"nodeName":null}}', ("a",)),
]


@pytest.mark.parametrize(("text", "names"), CASES)
def test_json_null_means_absent(text: str, names: tuple[str, ...]) -> None:
    assert tuple(container.name for container in decode_json(text.encode(), Pod).spec.containers) == names


def test_json_list_items_may_be_null() -> None:
    assert (
        decode_json(
            b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}', List[Pod]
        ).items
        == ()
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec":{"containers":7}}', '{"spec":{"containers":[null]}}'])
def test_json_of_another_type_is_rejected_with_a_message(text: str) -> None:
    with pytest.raises(DecodeError, match=r"not JSON|not Pod: Expected"):
        decode_json(text.encode(), Pod)
