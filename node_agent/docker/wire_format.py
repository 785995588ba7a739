"""Docker's multiplexed stream frames and log entries. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

STDOUT, STDERR, SYSTEM_ERROR = 1, 2, 3
"""Streams; TROUBLE is what Docker itself has to say, when it cannot go on."""

HEADER_BYTES = 8


class FramePart(NamedTuple):
    """Bytes of one frame; whether it `begins` with the first and `ends` with the last of them."""

    stream: int
    data: bytes
    begins: bool
    ends: bool


class DockerFrameParser:
    """Takes frames apart, in any cuts, and keeps no bytes but those of a header.

    A frame is a header of eight bytes, the first being the stream and the last four the length, and the payload.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0
        self._fresh = False

    @property
    def whole(self) -> bool:
        """Whether the last frame was complete."""
        return not self._left and not self._header

    def cut(self, data: bytes) -> Iterator[FramePart]:
        """The pieces of frames that these bytes are."""
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                taken = data[at : at + HEADER_BYTES - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) < HEADER_BYTES:
                    return
                self._stream, self._left = self._header[0], int.from_bytes(self._header[4:])
                self._header, self._fresh = b"", True
            payload = data[at : at + self._left]
            at += len(payload)
            self._left -= len(payload)
            if payload:
                yield FramePart(self._stream, payload, self._fresh, not self._left)
                self._fresh = False


ENTRY_BYTES = 16 << 10
ERROR_PREFIX = b"Error grabbing logs: "
LONGEST_TIME = 64
LONGEST_ENTRY = 64 << 10
"""Docker's own are shorter; those of other log drivers are passed on in parts."""

RECENT = 1024
"""Docker has been seen to send 43 entries again, those of one read of the file."""


class LogStreamError(Exception):
    """Docker gave up, in its own words."""


class EntrySplitter(Protocol):
    """Gives the pieces of entries that bytes are."""

    def cut(self, data: bytes) -> Iterator[FramePart]:
        """In their order, none of them empty."""
        ...


class TtyEntries:
    """Of a container with a terminal, with their times: there are no frames, an entry ends with its line or is full."""

    def __init__(self) -> None:
        self._head = b""
        self._begun = False
        self._left = 0

    def cut(self, data: bytes) -> Iterator[FramePart]:
        """A time that is cut is kept until the rest of it comes."""
        data, self._head = self._head + data, b""
        at = 0
        while at < len(data):
            begins = not self._begun
            text = at
            if begins:
                text = data.find(b" ", at, at + LONGEST_TIME) + 1
                if not text and len(data) - at < LONGEST_TIME:
                    self._head = data[at:]
                    return
                self._left = ENTRY_BYTES
            complains = begins and data.startswith(ERROR_PREFIX, at)
            stop = min(len(data), text + self._left)
            line = data.find(b"\n", text, stop) + 1
            stop = line or stop
            self._left -= stop - text
            self._begun = not line and self._left > 0
            yield FramePart(SYSTEM_ERROR if complains else STDOUT, data[at:stop], begins, not self._begun)
            at = stop


class RawEntries:
    """Of a container with a terminal, without their times: what comes is what was written."""

    def cut(self, data: bytes) -> Iterator[FramePart]:
        """As it comes."""
        yield FramePart(STDOUT, data, begins=False, ends=False)


class LogEntryReader:
    """Entries that Docker sends, with their times if `timed`, as they are to be read.

    `wanted` are times before lines. `last` is the time of the last entry.
    """

    def __init__(self, *, tty: bool, timed: bool, wanted: bool) -> None:
        self._tty = tty
        self._timed = timed
        self._wanted = wanted
        self._cutter = self._new_cutter()
        self._entry = b""
        self._passing = self._dropping = False
        self._open: set[int] = set()
        self._recent = _RecentEntries()
        self._parts: list[bytes] = []
        self._again: deque[bytes] = deque()
        self.last = b""

    def resume(self) -> None:
        """From here on Docker begins anew, with the entries from the time of the last on."""
        self._cutter = self._new_cutter()
        self._entry, self._passing = b"", False
        self._again = deque(self._parts)

    def read(self, data: bytes) -> bytes:
        """What of these bytes is to be read. Raises Trouble."""
        return b"".join(map(self._text, self._cutter.cut(data)))

    def finish(self) -> bytes:
        """What is left to be read at the end of the log: a last line of a terminal that has no end."""
        entry, self._entry = self._entry, b""
        return self._line(STDOUT, entry) if entry and not self._is_again(entry) else b""

    def _new_cutter(self) -> EntrySplitter:
        if not self._tty:
            return DockerFrameParser()
        return TtyEntries() if self._timed else RawEntries()

    def _text(self, piece: FramePart) -> bytes:
        if piece.stream == SYSTEM_ERROR:
            raise LogStreamError(piece.data.decode(errors="replace").strip())
        if not self._timed:
            return piece.data
        if self._passing:
            self._passing = not piece.ends
            return b"" if self._dropping else self._noted(piece.stream, piece.data)
        self._entry += piece.data
        if not piece.ends and len(self._entry) < LONGEST_ENTRY:
            return b""
        entry, self._entry, self._passing = self._entry, b"", not piece.ends
        self._dropping = self._recent.knows(entry) if entry.endswith(b"\n") else self._is_again(entry)
        return b"" if self._dropping else self._line(piece.stream, entry)

    def _is_again(self, part: bytes) -> bool:
        """Parts of one line have one time, so that two that are alike may both be meant, unless Docker began anew."""
        if self._again and self._again[0] == part:
            self._again.popleft()
            return True
        time, _, _ = part.partition(b" ")
        if self._parts and not self._parts[0].startswith(time + b" "):
            self._parts.clear()
        self._parts.append(part)
        return False

    def _line(self, stream: int, entry: bytes) -> bytes:
        self.last, _, text = entry.partition(b" ")
        begins = stream not in self._open
        self._noted(stream, text)
        return entry if self._wanted and begins else text

    def _noted(self, stream: int, text: bytes) -> bytes:
        (self._open.discard if text.endswith(b"\n") else self._open.add)(stream)
        return text


class _RecentEntries:
    """The entries that came last, with their times."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._known: set[int] = set()

    def knows(self, entry: bytes) -> bool:
        """Whether it is one of them; from now on it is."""
        mark = hash(entry)
        if mark in self._known:
            return True
        self._known.add(mark)
        self._order.append(mark)
        if len(self._order) > RECENT:
            self._known.discard(self._order.popleft())
        return False
