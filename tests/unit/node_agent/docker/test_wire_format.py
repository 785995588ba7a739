"""Frames and log entries of Docker decode equally at any split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.docker.wire_format import (
    MAX_ENTRY_BYTES,
    RECENT_ENTRIES,
    STDERR,
    STDOUT,
    SYSTEM_ERROR,
    TTY_ENTRY_BYTES,
    DockerFrameParser,
    FramePart,
    LogEntryReader,
    LogStreamError,
)

TIME = "2026-01-31T12:00:{:02}.123456789Z"

CUTS = st.lists(st.integers(0, 4000), max_size=8)
WRITTEN = st.lists(st.tuples(st.sampled_from((STDOUT, STDERR)), st.binary(max_size=300)), max_size=12)


def frame(stream: int, payload: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(payload).to_bytes(4) + payload


def stamped(second: int, text: bytes, stream: int = STDOUT) -> bytes:
    return frame(stream, f"{TIME.format(second)} ".encode() + text)


def cut(data: bytes, offsets: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(offset for offset in offsets if offset < len(data))})
    return [data[start:stop] for start, stop in pairwise(edges)]


def read(entries: LogEntryReader, *parts: bytes) -> bytes:
    return b"".join(map(entries.read, parts))


@given(WRITTEN, CUTS)
def test_frames_are_decoded_at_any_split(written: list[tuple[int, bytes]], offsets: list[int]) -> None:
    frames = DockerFrameParser()
    frame_parts: list[FramePart] = []
    for part in cut(b"".join(frame(*chunk) for chunk in written), offsets):
        frame_parts += frames.feed(part)
    assert frames.at_frame_boundary
    payloads = [(stream, payload) for stream, payload in written if payload]
    joined = [b""] * len(payloads)
    number = -1
    for frame_part in frame_parts:
        number += frame_part.is_first
        assert frame_part.stream == payloads[number][0]
        joined[number] += frame_part.data
        assert frame_part.is_last == (joined[number] == payloads[number][1])
    assert joined == [payload for _, payload in payloads]


@pytest.mark.parametrize("length", [3, 8, 10])
def test_truncated_frame_is_detected(length: int) -> None:
    frames = DockerFrameParser()
    list(frames.feed(frame(STDOUT, b"hello")[:length]))
    assert not frames.at_frame_boundary


@given(WRITTEN, CUTS)
def test_log_without_timestamps_equals_the_output(written: list[tuple[int, bytes]], offsets: list[int]) -> None:
    entries = LogEntryReader(tty=False, has_timestamps=False, show_timestamps=False)
    parts = cut(b"".join(frame(*chunk) for chunk in written), offsets)
    assert read(entries, *parts) == b"".join(payload for _, payload in written)


LINES = st.lists(st.binary(max_size=50).map(lambda text: text.replace(b"\n", b"") + b"\n"), max_size=20)


@given(LINES, CUTS, st.booleans())
def test_log_with_timestamps_has_one_per_line(lines: list[bytes], offsets: list[int], has_timestamps: bool) -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=has_timestamps)
    parts = cut(b"".join(stamped(number, line) for number, line in enumerate(lines)), offsets)
    heads = [f"{TIME.format(number)} ".encode() if has_timestamps else b"" for number in range(len(lines))]
    assert read(entries, *parts) == b"".join(head + line for head, line in zip(heads, lines, strict=True))
    assert entries.last_time == (TIME.format(len(lines) - 1).encode() if lines else b"")


@given(LINES, CUTS, st.booleans())
def test_terminal_log_without_frames_decodes_equally(
    lines: list[bytes], offsets: list[int], has_timestamps: bool
) -> None:
    entries = LogEntryReader(tty=True, has_timestamps=True, show_timestamps=has_timestamps)
    sent = [f"{TIME.format(number)} ".encode() + line for number, line in enumerate(lines)]
    assert read(entries, *cut(b"".join(sent), offsets)) == b"".join(sent if has_timestamps else lines)


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("long", [TTY_ENTRY_BYTES, TTY_ENTRY_BYTES + 1, 3 * TTY_ENTRY_BYTES + 7])
def test_line_split_by_docker_has_one_timestamp(tty: bool, long: int) -> None:
    line = b"x" * long + b"\n"
    parts = [line[at : at + TTY_ENTRY_BYTES] for at in range(0, len(line), TTY_ENTRY_BYTES)]
    time = f"{TIME.format(1)} ".encode()
    sent = b"".join(time + part if tty else frame(STDOUT, time + part) for part in parts)
    for offsets in ([], [17], list(range(0, len(sent), 1000))):
        entries = LogEntryReader(tty=tty, has_timestamps=True, show_timestamps=True)
        assert read(entries, *cut(sent, offsets)) == time + line


def test_interleaved_partial_lines_keep_their_timestamps() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=True)
    sent = stamped(1, b"a") + stamped(2, b"b\n", STDERR) + stamped(1, b"c\n")
    assert read(entries, sent) == b"".join((TIME.format(1).encode(), b" a", TIME.format(2).encode(), b" b\nc\n"))


def test_endless_log_entry_is_passed_on_in_parts() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=False)
    long_line = stamped(1, b"x" * (4 * MAX_ENTRY_BYTES) + b"\n")
    first = entries.read(long_line[: 2 * MAX_ENTRY_BYTES])
    assert len(first) > MAX_ENTRY_BYTES
    assert first + entries.read(long_line[2 * MAX_ENTRY_BYTES :]) == b"x" * (4 * MAX_ENTRY_BYTES) + b"\n"


def test_log_entry_sent_twice_is_read_once() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=False)
    lines = [stamped(number, b"line %d\n" % number) for number in range(9)]
    sent = [*lines, *lines[4:], stamped(9, b"line 8\n"), stamped(9, b"line 8\n", STDERR)]
    payloads = read(entries, b"".join(sent)).split()
    assert [int(separator) for separator in payloads if separator != b"line"] == [*range(9), 8]


def test_interrupted_log_resumes_at_the_last_timestamp() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=False)
    assert read(entries, stamped(1, b"a\n") + stamped(2, b"b\n") + stamped(3, b"lost\n")[:20]) == b"a\nb\n"
    entries.resume()
    assert read(entries, stamped(2, b"b\n") + stamped(3, b"c\n")) == b"c\n"


def test_only_recent_log_entries_are_remembered() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=False)
    sent = [stamped(number % 60, b"%d\n" % number) for number in range(RECENT_ENTRIES + 1)]
    read(entries, *sent)
    assert entries.read(sent[0]) == b"0\n"
    assert entries.read(sent[-1]) == b""


def test_equal_parts_of_one_line_are_not_duplicates() -> None:
    entries = LogEntryReader(tty=False, has_timestamps=True, show_timestamps=False)
    part = stamped(1, b"y" * TTY_ENTRY_BYTES)
    assert read(entries, part, part, part) == b"y" * (3 * TTY_ENTRY_BYTES)


@pytest.mark.parametrize("tty", [False, True])
def test_docker_error_message_is_not_part_of_the_log(tty: bool) -> None:
    entries = LogEntryReader(tty=tty, has_timestamps=True, show_timestamps=False)
    message = b"Error grabbing logs: no such file or directory\n"
    line = f"{TIME.format(1)} Error grabbing logs: by me\n".encode()
    assert read(entries, line if tty else frame(STDOUT, line)) == b"Error grabbing logs: by me\n"
    with pytest.raises(LogStreamError, match=r"^Error grabbing logs: no such file or directory$"):
        read(entries, message if tty else frame(SYSTEM_ERROR, message))
