"""Options of log and streaming requests."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from api.core.pod import Container, EphemeralContainer, Pod, PodSpec
from api.meta.types import ObjectMeta
from master.errors import StatusError
from master.server.proxy import pod_streams


def pod(*names: str, first: tuple[str, ...] = (), later: tuple[str, ...] = ()) -> Pod:
    spec = PodSpec(
        containers=tuple(Container(name=name) for name in names),
        init_containers=tuple(Container(name=name) for name in first),
        ephemeral_containers=tuple(EphemeralContainer(name=name) for name in later),
    )
    return Pod(metadata=ObjectMeta(name="p", namespace="red"), spec=spec)


def test_streaming_container_is_selected() -> None:
    assert pod_streams.container_name(pod("a"), "") == "a"
    assert pod_streams.container_name(pod("a", first=("i",), later=("e",)), "") == "a"
    whole = pod("a", "b", first=("i",), later=("e",))
    assert [pod_streams.container_name(whole, name) for name in "abie"] == ["a", "b", "i", "e"]
    with pytest.raises(StatusError, match=r"a container name must be specified for pod p, choose one of: \[i a b e\]"):
        pod_streams.container_name(whole, "")


@pytest.mark.parametrize("text", ["0", "+7", "-1", "9223372036854775807", "-9223372036854775808", "007"])
def test_log_integer_options_are_normalized(text: str) -> None:
    with contextlib.suppress(StatusError):
        log_options = pod_streams.parse_log_options(MultiDict(sinceSeconds=text), "p")
        assert dict(log_options.parameters) == {"sinceSeconds": str(int(text))}


@pytest.mark.parametrize("text", ["", "1.0", "0x10", " 1", "1_0", "٣", "+", "9" * 5000])
def test_invalid_log_integer_option_is_rejected(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        pod_streams.parse_log_options(MultiDict(tailLines=text), "p")
    assert refused.value.status.code == 400
    assert refused.value.status.message.startswith(f'strconv.ParseInt: parsing "{text}": ')


@given(st.datetimes(min_value=datetime.datetime(1, 1, 2), timezones=st.just(datetime.UTC)))
def test_log_since_time_is_passed_in_whole_seconds(moment: datetime.datetime) -> None:
    text = moment.isoformat().replace("+00:00", "Z")
    actual = dict(pod_streams.parse_log_options(MultiDict(sinceTime=text), "p").parameters)["sinceTime"]
    assert datetime.datetime.fromisoformat(actual) == moment.replace(microsecond=0)


@given(st.dictionaries(st.sampled_from(["sinceTime", "tailLines", "limitBytes", "stream", "follow"]), st.text()))
def test_any_log_query_is_passed_or_rejected(query: dict[str, str]) -> None:
    code = 200
    try:
        pod_streams.parse_log_options(MultiDict(query), "p")
    except StatusError as refused:
        code = refused.status.code
    assert code in (200, 400, 422)
