"""Docker's multiplexed stream frames and log entries. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

STDOUT, STDERR, SYSTEM_ERROR = 1, 2, 3
"""Stream numbers. SYSTEM_ERROR carries an error message of Docker itself, when it cannot continue."""

HEADER_BYTES = 8

TTY_ENTRY_BYTES = 16 << 10
"""Longest log entry of a container with a terminal; longer lines are several entries."""

ERROR_PREFIX = b"Error grabbing logs: "

MAX_TIME_BYTES = 64
"""Longest timestamp in front of a log entry, with the space after it."""

MAX_ENTRY_BYTES = 64 << 10
"""Log entry length above which its parts are passed on before its end. Entries of Docker's own drivers are shorter."""

RECENT_ENTRIES = 1024
"""Entries that are remembered to recognise repeated ones. Docker has repeated 43 entries, one read of the file."""


class LogStreamError(Exception):
    """An error with which Docker ended a log. The message is Docker's."""


class FramePart(NamedTuple):
    """Bytes of one frame, and whether they include its first and its last byte."""

    stream: int
    data: bytes
    is_first: bool
    is_last: bool


class EntrySplitter(Protocol):
    """A parser that splits a byte stream into parts of log entries."""

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """Yield the parts in these bytes, in order. No part is empty."""
        ...


class DockerFrameParser:
    """A parser of frames in a stream of chunks of any size. It stores at most an incomplete header.

    A frame is a header of eight bytes and a payload. The first byte of the header is the stream, the last four are the
    length of the payload.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._remaining = 0
        self._at_start = False

    @property
    def at_frame_boundary(self) -> bool:
        """Whether the last frame was complete."""
        return not self._remaining and not self._header

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """Yield the parts of frames in these bytes."""
        position = 0
        while position < len(data):
            if not self._remaining:
                header_part = data[position : position + HEADER_BYTES - len(self._header)]
                self._header += header_part
                position += len(header_part)
                if len(self._header) < HEADER_BYTES:
                    return
                self._stream = self._header[0]
                self._remaining = int.from_bytes(self._header[4:])
                self._header = b""
                self._at_start = True
            payload = data[position : position + self._remaining]
            position += len(payload)
            self._remaining -= len(payload)
            if payload:
                yield FramePart(self._stream, payload, self._at_start, not self._remaining)
                self._at_start = False


class TtyEntries:
    """A parser of the entries in the log of a container with a terminal, with timestamps.

    Such a log has no frames. An entry ends with its line or after TTY_ENTRY_BYTES.
    """

    def __init__(self) -> None:
        self._partial_time = b""
        self._in_entry = False
        self._remaining = 0

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """Yield the parts of entries in these bytes. An incomplete timestamp is stored until its rest arrives."""
        data = self._partial_time + data
        self._partial_time = b""
        position = 0
        while position < len(data):
            is_first = not self._in_entry
            text_start = position
            if is_first:
                text_start = data.find(b" ", position, position + MAX_TIME_BYTES) + 1
                if not text_start and len(data) - position < MAX_TIME_BYTES:
                    self._partial_time = data[position:]
                    return
                self._remaining = TTY_ENTRY_BYTES
            is_error = is_first and data.startswith(ERROR_PREFIX, position)
            end = min(len(data), text_start + self._remaining)
            line_end = data.find(b"\n", text_start, end) + 1
            end = line_end or end
            self._remaining -= end - text_start
            self._in_entry = not line_end and self._remaining > 0
            stream = SYSTEM_ERROR if is_error else STDOUT
            yield FramePart(stream, data[position:end], is_first, not self._in_entry)
            position = end


class RawEntries:
    """A parser for the log of a container with a terminal, without timestamps, which has no entries."""

    def feed(self, data: bytes) -> Iterator[FramePart]:
        """Yield these bytes as one part of standard output."""
        yield FramePart(STDOUT, data, is_first=False, is_last=False)


class LogEntryReader:
    """A converter of the log entries that Docker sends into the text of the log, without repeated entries.

    `has_timestamps`: Docker sends a timestamp with each entry. `show_timestamps`: the text has them in front of lines.
    """

    def __init__(self, *, tty: bool, has_timestamps: bool, show_timestamps: bool) -> None:
        self.last_time = b""
        """The timestamp of the last entry."""
        self._tty = tty
        self._has_timestamps = has_timestamps
        self._show_timestamps = show_timestamps
        self._splitter = self._new_splitter()
        self._entry = b""
        self._in_long_entry = False
        """Whether parts of an entry longer than MAX_ENTRY_BYTES are being passed on."""
        self._skipping = False
        """Whether the current entry is a repeated one."""
        self._open_lines: set[int] = set()
        """Streams whose last entry did not end its line."""
        self._recent = _RecentEntries()
        self._unfinished_parts: list[bytes] = []
        """The last entries without a line feed; all of them have the same timestamp."""
        self._expected_repeats: deque[bytes] = deque()

    def resume(self) -> None:
        """Prepare for a new response of Docker, which starts with the entries from the time of the last entry on."""
        self._splitter = self._new_splitter()
        self._entry = b""
        self._in_long_entry = False
        self._expected_repeats = deque(self._unfinished_parts)

    def read(self, data: bytes) -> bytes:
        """Return the text in these bytes. Raises LogStreamError."""
        return b"".join(map(self._text, self._splitter.feed(data)))

    def finish(self) -> bytes:
        """Return the remaining text at the end of the log: a last line of a terminal without a line feed."""
        entry = self._entry
        self._entry = b""
        return self._line(STDOUT, entry) if entry and not self._is_repeated_part(entry) else b""

    def _new_splitter(self) -> EntrySplitter:
        if not self._tty:
            return DockerFrameParser()
        return TtyEntries() if self._has_timestamps else RawEntries()

    def _text(self, part: FramePart) -> bytes:
        if part.stream == SYSTEM_ERROR:
            raise LogStreamError(part.data.decode(errors="replace").strip())
        if not self._has_timestamps:
            return part.data
        if self._in_long_entry:
            self._in_long_entry = not part.is_last
            if self._skipping:
                return b""
            self._track_line_end(part.stream, part.data)
            return part.data
        self._entry += part.data
        if not part.is_last and len(self._entry) < MAX_ENTRY_BYTES:
            return b""
        entry = self._entry
        self._entry = b""
        self._in_long_entry = not part.is_last
        self._skipping = self._recent.is_repeated(entry) if entry.endswith(b"\n") else self._is_repeated_part(entry)
        return b"" if self._skipping else self._line(part.stream, entry)

    def _is_repeated_part(self, part: bytes) -> bool:
        """Return whether Docker repeats this part of a line after `resume`, and remember the part otherwise.

        Parts of one line have the same timestamp, so two equal parts may both be genuine.
        """
        if self._expected_repeats and self._expected_repeats[0] == part:
            self._expected_repeats.popleft()
            return True
        time, _, _ = part.partition(b" ")
        if self._unfinished_parts and not self._unfinished_parts[0].startswith(time + b" "):
            self._unfinished_parts.clear()
        self._unfinished_parts.append(part)
        return False

    def _line(self, stream: int, entry: bytes) -> bytes:
        self.last_time, _, text = entry.partition(b" ")
        starts_line = stream not in self._open_lines
        self._track_line_end(stream, text)
        return entry if self._show_timestamps and starts_line else text

    def _track_line_end(self, stream: int, text: bytes) -> None:
        if text.endswith(b"\n"):
            self._open_lines.discard(stream)
        else:
            self._open_lines.add(stream)


class _RecentEntries:
    """Hashes of the last entries, which include their timestamps."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._hashes: set[int] = set()

    def is_repeated(self, entry: bytes) -> bool:
        """Return whether this entry was read recently, and remember the entry."""
        entry_hash = hash(entry)
        if entry_hash in self._hashes:
            return True
        self._hashes.add(entry_hash)
        self._order.append(entry_hash)
        if len(self._order) > RECENT_ENTRIES:
            self._hashes.discard(self._order.popleft())
        return False
