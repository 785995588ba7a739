"""Channel messages, terminal sizes, and the encoding of exit codes."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from node_agent.docker.exec import TerminalSize
from node_agent.server.portforward import parse_ports
from node_agent.server.streaming import remotecommand
from node_agent.server.streaming.channels import (
    EXEC_PROTOCOLS,
    PORT_FORWARD_PROTOCOLS,
    ChannelData,
    ChannelDecoder,
    ChannelProtocol,
    encode_channel_message,
    negotiate,
)
from node_agent.server.streaming.remotecommand import Exited, Failed, Outcome, StreamOptions, parse_stream_options
from node_agent.server.streaming.terminal_size import MAX_PENDING_CHARACTERS, SizeParser, TerminalSizeQueue
from node_agent.server.streaming.websocket import ReceiveBuffer

V5 = EXEC_PROTOCOLS[-1]
BASE64 = EXEC_PROTOCOLS[2]


def decode(dialect: ChannelProtocol, message: bytes) -> ChannelData | None:
    return ChannelDecoder(dialect).feed(message, last=True)


@pytest.mark.parametrize(
    ("lines", "supported", "name"),
    [
        ([], EXEC_PROTOCOLS, ""),
        (["", " , "], EXEC_PROTOCOLS, ""),
        (["v5.channel.k8s.io,v4.channel.k8s.io"], EXEC_PROTOCOLS, "v5.channel.k8s.io"),
        (["v5.channel.k8s.io,v4.channel.k8s.io"], PORT_FORWARD_PROTOCOLS, "v4.channel.k8s.io"),
        (["v9", "base64.channel.k8s.io, channel.k8s.io"], EXEC_PROTOCOLS, "base64.channel.k8s.io"),
        (["v5.base64.channel.k8s.io"], EXEC_PROTOCOLS, None),
        (["v3.channel.k8s.io"], EXEC_PROTOCOLS, None),
    ],
)
def test_channel_protocol_is_the_clients_first_known_one(
    lines: list[str], supported: tuple[ChannelProtocol, ...], name: str | None
) -> None:
    chosen = negotiate(lines, supported)
    assert (chosen and chosen.name) == name


@given(st.sampled_from(EXEC_PROTOCOLS), st.integers(0, 9), st.binary())
def test_channel_messages_round_trip(dialect: ChannelProtocol, channel: int, data: bytes) -> None:
    assert decode(dialect, encode_channel_message(dialect, channel, data)) == ChannelData(channel, data)


@given(st.sampled_from(EXEC_PROTOCOLS), st.binary(max_size=40))
def test_any_channel_message_is_decoded_or_rejected(dialect: ChannelProtocol, message: bytes) -> None:
    try:
        part = decode(dialect, message)
    except ValueError:
        assert (dialect, message[0]) == (V5, 255)
    else:
        assert part is None or 0 <= part.channel <= 255


def test_only_v5_has_a_close_signal() -> None:
    assert decode(V5, b"\xff\x00") == ChannelData(0, b"", last=True)
    assert decode(EXEC_PROTOCOLS[3], b"\xff\x00") == ChannelData(255, b"\x00")
    for wrong in (b"\xff", b"\xff\x00\x00"):
        with pytest.raises(ValueError, match="number of one channel"):
            decode(V5, wrong)


def test_invalid_base64_message_is_ignored() -> None:
    assert decode(BASE64, b"0Zm9v") == ChannelData(0, b"foo")
    assert decode(BASE64, b"0Zm9") is None
    assert decode(BASE64, b"0\x80\x80") is None


@given(st.sampled_from(EXEC_PROTOCOLS), st.integers(0, 9), st.binary(min_size=1), st.lists(st.integers(0, 60)))
def test_channel_message_decodes_equally_at_any_split(
    dialect: ChannelProtocol, channel: int, data: bytes, cuts: list[int]
) -> None:
    decoder, received = ChannelDecoder(dialect), b""
    for _ in range(2):
        for part, last in cut(encode_channel_message(dialect, channel, data), cuts):
            decoded = decoder.feed(part, last=last)
            assert decoded is None or (decoded.channel, decoded.last) == (channel, False)
            received += decoded.data if decoded else b""
    assert received == data * 2


def cut(message: bytes, cuts: list[int]) -> list[tuple[bytes, bool]]:
    offsets = [0, *sorted(min(offset, len(message)) for offset in cuts), len(message)]
    parts = [message[start:end] for start, end in pairwise(offsets)]
    return [(part, number == len(parts) - 1) for number, part in enumerate(parts)]


def test_close_signal_and_invalid_base64_decode_at_any_split() -> None:
    decoder = ChannelDecoder(V5)
    assert [decoder.feed(b"\xff", last=False), decoder.feed(b"\x00", last=False)] == [None, None]
    assert decoder.feed(b"", last=True) == ChannelData(0, b"", last=True)
    decoder.feed(b"\xff\x00", last=False)
    with pytest.raises(ValueError, match="number of one channel"):
        decoder.feed(b"\x00", last=False)
    decoder = ChannelDecoder(BASE64)
    assert decoder.feed(b"0Zg==", last=False) == ChannelData(0, b"f")
    assert decoder.feed(b"Zm9v", last=True) is None
    assert decoder.feed(b"1\x80\x80\x80\x80", last=False) is None
    assert decoder.feed(b"Zm9v", last=True) is None
    assert decoder.feed(b"2Zm9v", last=True) == ChannelData(2, b"foo")


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        ([b'{"Width":80,"Height":24}'], [TerminalSize(80, 24)]),
        ([b'{"Wid', b'th":80,"Height":24}{"width":1,', b'"height":2}\n\n'], [TerminalSize(80, 24), TerminalSize(1, 2)]),
        ([b'{"Width":80}'], [TerminalSize(80, 0)]),
        ([b'{"Width":70000,"Height":1}', b'{"Width":1,"Height":1}'], []),
        ([b'{"Width":-1,"Height":1}', b'{"Width":1,"Height":1}'], []),
        ([b'{"Width":true,"Height":1}'], []),
        ([b"[1]", b'{"Width":1,"Height":1}'], []),
        ([b"\xff\xff", b'{"Width":1,"Height":1}'], []),
        ([b'{"Width":1,"Height":1}', b"[" * 5000, b'{"Width":2,"Height":2}'], [TerminalSize(1, 1)]),
    ],
)
def test_terminal_sizes_decode_at_any_split_until_an_invalid_one(parts: list[bytes], sizes: list[TerminalSize]) -> None:
    reader = SizeParser()
    assert [size for part in parts for size in reader.feed(part)] == sizes


def test_endless_terminal_size_is_not_buffered() -> None:
    reader = SizeParser()
    assert reader.feed(b'{"Width":' + b" " * MAX_PENDING_CHARACTERS) == []
    assert reader.feed(b'1,"Height":1}{"Width":1,"Height":1}') == []


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_terminal_size_data_is_decoded_or_rejected(parts: list[bytes]) -> None:
    reader = SizeParser()
    for part in parts:
        reader.feed(part)


async def test_terminal_size_queue_keeps_only_the_last() -> None:
    resizes = TerminalSizeQueue()
    resizes.feed(b'{"Width":1,"Height":1}{"Width":2,"Height":2}')
    resizes.feed(b'{"Width":3,"Height":3}')
    resizes.end()
    assert [size async for size in resizes] == [TerminalSize(3, 3)]


async def test_receive_buffer_delivers_data_before_the_connection_loss() -> None:
    inbox = ReceiveBuffer(lambda: None)
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    inbox.feed(b"one")
    inbox.feed(b"two")
    inbox.fail("gone")
    inbox.feed(b"late")
    assert (await reading, await inbox.read(), inbox.size) == (b"one", b"two", 0)
    with pytest.raises(ConnectionResetError, match="gone"):
        await inbox.read()


async def test_receive_buffer_end_is_not_a_later_loss() -> None:
    inbox = ReceiveBuffer(lambda: None)
    inbox.end()
    inbox.fail("gone")
    assert await inbox.read() == b""


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        (Exited(0), {"metadata": {}, "status": "Success"}, ""),
        (
            Exited(137),
            {
                "metadata": {},
                "status": "Failure",
                "message": "command terminated with non-zero exit code: exit status 137",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "137"}]},
            },
            "command terminated with non-zero exit code: exit status 137",
        ),
        (
            Failed("no such container"),
            {
                "metadata": {},
                "status": "Failure",
                "message": "Internal error occurred: no such container",
                "reason": "InternalError",
                "details": {"causes": [{"message": "no such container"}]},
                "code": 500,
            },
            "Internal error occurred: no such container",
        ),
    ],
)
def test_exec_outcome_is_encoded_per_protocol(outcome: Outcome, status: dict[str, object], text: str) -> None:
    assert json.loads(remotecommand.status_body(outcome)) == status
    assert remotecommand.status_text(outcome).decode() == text


def test_terminal_request_has_no_separate_stderr() -> None:
    query = MultiDict(
        [("input", "1"), ("output", "1"), ("error", "1"), ("tty", "1"), ("command", "a"), ("command", "b c")]
    )
    assert parse_stream_options(query) == StreamOptions(
        stdin=True, stdout=True, stderr=False, tty=True, command=("a", "b c")
    )
    assert parse_stream_options(MultiDict([("error", "1"), ("input", "true")])) == StreamOptions(
        stdin=False, stdout=False, stderr=True, tty=False
    )


@pytest.mark.parametrize("query", [{}, {"tty": "1"}, {"tty": "1", "error": "1"}, {"stdin": "1"}, {"input": "true"}])
def test_stream_options_need_at_least_one_stream(query: dict[str, str]) -> None:
    with pytest.raises(web.HTTPBadRequest) as refusal:
        parse_stream_options(MultiDict(query))
    assert refusal.value.text == "you must specify at least 1 of stdin, stdout, stderr\n"


def test_port_forward_ports_accept_commas_and_repetition() -> None:
    assert parse_ports(["80,443", "1", "65535"]) == [80, 443, 1, 65535]


@pytest.mark.parametrize(
    ("given_ports", "message"),
    [
        ([], "is required"),
        ([""], "cannot be empty"),
        (["0"], 'unable to parse "0" as a port'),
        (["80,65536"], 'unable to parse "80,65536" as a port'),
        (["+80"], "unable to parse"),
        (["٣"], "unable to parse"),
        (["80,"], "unable to parse"),
        (["1"] * 128, "at most 127 ports"),
    ],
)
def test_invalid_port_forward_ports_are_rejected(given_ports: list[str], message: str) -> None:
    with pytest.raises(web.HTTPBadRequest) as refusal:
        parse_ports(given_ports)
    assert message in (refusal.value.text or "")
