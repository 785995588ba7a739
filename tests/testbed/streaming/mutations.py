"""Recorded streaming sessions, split into frames, mutated and reassembled."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "contract/streaming/conversations"
HEAD_END = b"\r\n\r\n"
MASK = b"\x11\x22\x33\x44"


@dataclass(frozen=True)
class Conversation:
    """The recorded bytes of a client: the head of its request, and frames. Frames of a tunnel are SPDY frames."""

    name: str
    head: bytes
    frames: tuple[bytes, ...]
    websocket: bool
    tunnel: bool

    def without_goodbye(self) -> list[bytes]:
        """Without the frames by which a client takes its leave: sent at once, they leave no time for anything else."""
        if self.websocket and not self.tunnel:
            return [frame for frame in self.frames if frame[0] & 0xF != 8]
        return [frame for frame in self.frames if frame[:4] not in (b"\x80\x03\x00\x03", b"\x80\x03\x00\x07")]

    def encoded(self, frames: list[bytes]) -> list[bytes]:
        """Frames as they go over the connection."""
        if self.tunnel:
            return [masked(0x82, frame) for frame in frames]
        if self.websocket:
            return [masked(frame[0], frame[1:]) for frame in frames if frame]
        return list(frames)


def load() -> list[Conversation]:
    """Return all recorded conversations."""
    return [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def _read(path: Path) -> Conversation:
    sent = b"".join(map(base64.b64decode, json.loads(path.read_text())))
    head, _, rest = sent.partition(HEAD_END)
    websocket = b"Upgrade: websocket" in head
    tunnel = websocket and b"SPDY/3.1" in head
    if not websocket:
        frames = spdy_frames(rest)
    elif tunnel:
        frames = spdy_frames(b"".join(frame[1:] for frame in websocket_frames(rest) if frame[0] & 0xF == 2))
    else:
        frames = websocket_frames(rest)
    return Conversation(path.stem, head + HEAD_END, tuple(frames), websocket, tunnel)


def spdy_frames(sent: bytes) -> list[bytes]:
    """Cut at the lengths that the frames give."""
    frames = []
    while sent:
        length = 8 + int.from_bytes(sent[5:8])
        frames.append(sent[:length])
        sent = sent[length:]
    return frames


def websocket_frames(sent: bytes) -> list[bytes]:
    """Return the first byte and the unmasked payload of each frame."""
    frames = []
    while sent:
        first, length, at = sent[0], sent[1] & 0x7F, 2
        if length >= 126:
            width = 2 if length == 126 else 8
            length, at = int.from_bytes(sent[at : at + width]), at + width
        mask, at = sent[at : at + 4], at + 4
        frames.append(bytes((first,)) + _xor(sent[at : at + length], mask))
        sent = sent[at + length :]
    return frames


def masked(first: int, payload: bytes) -> bytes:
    """Return a masked frame, as clients send it."""
    size = len(payload)
    if size < 126:
        lengths = bytes((0x80 | size,))
    elif size < 1 << 16:
        lengths = bytes((0x80 | 126,)) + size.to_bytes(2)
    else:
        lengths = bytes((0x80 | 127,)) + size.to_bytes(8)
    return bytes((first,)) + lengths + MASK + _xor(payload, MASK)


def _xor(data: bytes, mask: bytes) -> bytes:
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data) ^ int.from_bytes(whole)).to_bytes(len(data))


def mutated(dice: random.Random, conversation: Conversation, other: Conversation) -> tuple[bytes, list[bytes], int]:
    """Return a head, the pieces to send one after another after its response, and the number of frames in them."""
    frames = conversation.without_goodbye() if dice.random() < 0.6 else list(conversation.frames)
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3, 5))):
        _change(dice, frames, other)
    head = _flipped(dice, conversation.head) if dice.random() < 0.03 else conversation.head
    pieces = conversation.encoded(frames)
    if pieces and dice.random() < 0.25:
        index = dice.randrange(len(pieces))
        pieces[index] = _flipped(dice, pieces[index])
    if pieces and dice.random() < 0.25:
        index = dice.randrange(len(pieces))
        pieces[index:] = [pieces[index][: dice.randrange(len(pieces[index]) + 1)]]
    if dice.random() < 0.3:
        pieces = [b"".join(pieces)]
    elif dice.random() < 0.3:
        whole, pieces = b"".join(pieces), []
        while whole:
            size = dice.choice((1, 3, 50, 1000))
            pieces.append(whole[:size])
            whole = whole[size:]
    return head, pieces, len(frames)


def _change(dice: random.Random, frames: list[bytes], other: Conversation) -> None:
    if not frames:
        return
    index, target = dice.randrange(len(frames)), dice.randrange(len(frames))
    frame = frames[index]
    match dice.randrange(9):
        case 0 | 1:
            frames[index] = _flipped(dice, frame)
        case 2:
            frames[index] = frame[: dice.randrange(len(frame) + 1)]
        case 3:
            frames.insert(target, frame)
        case 4:
            del frames[index]
        case 5:
            frames[index], frames[target] = frames[target], frame
        case 6:
            frames.insert(index, dice.randbytes(dice.choice((1, 2, 8, 40, 5000))))
        case 7:
            frames[index] = frame + dice.randbytes(dice.choice((1, 4, 100)))
        case _:
            _interleave(dice, frames, other)


def _interleave(dice: random.Random, frames: list[bytes], other: Conversation) -> None:
    for foreign in other.frames[: dice.randrange(4) + 1]:
        frames.insert(dice.randrange(len(frames) + 1), foreign)


def _flipped(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        if changed:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)
