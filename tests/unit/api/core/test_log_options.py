"""Log queries: every default, every rejection of the reference, and times to the nanosecond."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.log_options import NANOSECONDS, InvalidLogOptions, PodLogOptions, parse_log_options

SECOND = 1_700_000_000
"""2023-11-14T22:13:20Z."""


def parse(query: str) -> PodLogOptions:
    return parse_log_options(parse_qs(query, keep_blank_values=True))


def refusal(query: str) -> tuple[int, str]:
    with pytest.raises(InvalidLogOptions) as caught:
        parse(query)
    return caught.value.status, str(caught.value)


def test_log_options_default_to_the_whole_log() -> None:
    assert parse("") == parse("container=web&pretty=1") == PodLogOptions()


def test_log_options_parse_every_parameter() -> None:
    assert parse("follow=true&previous=1&timestamps=true&stream=Stderr&limitBytes=7&sinceSeconds=9") == PodLogOptions(
        follow=True, previous=True, timestamps=True, stream="Stderr", limit_bytes=7, since_seconds=9
    )
    assert parse("tailLines=0").tail_lines == 0
    assert parse("stream=All&tailLines=5") == PodLogOptions(tail_lines=5)


@pytest.mark.parametrize(
    ("text", "meant"), [("", True), ("yes", True), ("0", False), ("false", False), ("FALSE", False)]
)
def test_log_option_flag_is_true_unless_false_is_given(text: str, meant: bool) -> None:
    assert parse(f"follow={text}").follow is meant


def test_log_option_given_twice_takes_the_first_value() -> None:
    assert parse("tailLines=1&tailLines=2").tail_lines == 1


@pytest.mark.parametrize(("query", "lines"), [("tail=3", 3), ("tail=all&tailLines=4", None), ("tail=&tailLines=4", 4)])
def test_log_options_accept_the_old_name_of_tail_lines(query: str, lines: int | None) -> None:
    assert parse(query).tail_lines == lines


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2023-11-14T22:13:20Z", 0),
        ("2023-11-14T22:13:20.5Z", 500_000_000),
        ("2023-11-14T22:13:20.123456789Z", 123_456_789),
        ("2023-11-14T22:13:20.1234567899Z", 123_456_789),
        ("2023-11-15T00:13:20.000000001%2B02:00", 1),
        ("2023-11-14T14:13:20,25-08:00", 250_000_000),
    ],
)
def test_log_since_time_is_parsed_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert parse(f"sinceTime={text}").since_time == SECOND * NANOSECONDS + nanoseconds


@pytest.mark.parametrize("text", ["", "null"])
def test_empty_log_since_time_means_the_beginning(text: str) -> None:
    assert parse(f"sinceTime={text}").since_time == 0


def test_log_start_is_since_seconds_before_now_or_since_time() -> None:
    now = SECOND * NANOSECONDS + 5
    assert PodLogOptions(since_seconds=10).since(now) == (SECOND - 10) * NANOSECONDS + 5
    assert PodLogOptions(since_time=7).since(now) == 7
    assert PodLogOptions().since(now) is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tailLines=many", 'tailLines: "many" is not a 64-bit integer'),
        ("tailLines=", 'tailLines: "" is not a 64-bit integer'),
        ("limitBytes=1_000", 'limitBytes: "1_000" is not a 64-bit integer'),
        ("sinceSeconds=1.5", 'sinceSeconds: "1.5" is not a 64-bit integer'),
        ("tailLines=9223372036854775808", 'tailLines: "9223372036854775808" is not a 64-bit integer'),
        ("sinceTime=now", 'sinceTime: "now" is not a time of RFC 3339, such as 2026-01-31T12:00:00.5Z'),
        ("sinceTime=2023-11-14T22:13:20", 'sinceTime: "2023-11-14T22:13:20" is not a time'),
        ("sinceTime=2023-13-14T22:13:20Z", "month must be in 1..12"),
    ],
)
def test_unparsable_log_option_is_a_bad_request(query: str, words: str) -> None:
    status, output = refusal(query)
    assert status == 400
    assert output.startswith("Unable to decode query: ")
    assert words in output


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        (
            "sinceSeconds=1&sinceTime=2023-11-14T22:13:20Z",
            "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
        ("stream=stdout", 'stream: Unsupported value: "stdout": supported values: "All", "Stderr", "Stdout"'),
        (
            "stream=Stdout&tailLines=1",
            "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
        ),
    ],
)
def test_contradictory_log_options_are_invalid(query: str, words: str) -> None:
    assert refusal(query) == (422, f"Invalid request: {words}")


def test_log_options_report_every_error() -> None:
    _, output = refusal("tailLines=-1&limitBytes=-1&sinceSeconds=-1")
    assert output.count("Invalid value: -1") == 3


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1)), st.integers(0, 999))
def test_any_log_since_time_is_parsed_as_written(moment: datetime, nanoseconds: int) -> None:
    seconds = int(moment.replace(microsecond=0, tzinfo=UTC).timestamp())
    text = f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{moment.microsecond:06}{nanoseconds:03}Z"
    actual = parse(f"sinceTime={text}").since_time
    assert actual == seconds * NANOSECONDS + moment.microsecond * 1000 + nanoseconds


@given(st.text())
def test_any_log_query_is_parsed_or_rejected(text: str) -> None:
    for name in ("tailLines", "limitBytes", "sinceSeconds", "sinceTime", "stream", "follow"):
        status = 200
        try:
            parse_log_options({name: [text]})
        except InvalidLogOptions as error:
            status = error.status
        assert status in {200, 400, 422}
