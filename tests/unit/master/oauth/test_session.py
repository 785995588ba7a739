"""Sealed sessions: one opens with its own key only, and before its end."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.oauth.session import (
    KEY_BYTES,
    MAX_COOKIE_LENGTH,
    SESSION_SECONDS,
    EndedSessions,
    Session,
    SessionSealer,
    is_same_csrf_token,
    load_session_key,
    new_csrf_token,
)
from reconcile.errors import Refused

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SEALER, OTHER = SessionSealer(b"a" * KEY_BYTES), SessionSealer(b"b" * KEY_BYTES)
COOKIE = SEALER.seal("alice", "1", NOW)


@given(st.text(max_size=50), st.text(max_size=20), st.integers(0, 2 * SESSION_SECONDS))
def test_session_opens_with_its_key_before_its_end(name: str, uid: str, seconds: int) -> None:
    cookie, later = SEALER.seal(name, uid, NOW), NOW + datetime.timedelta(seconds=seconds)
    session = SEALER.open(cookie, later)
    if seconds < SESSION_SECONDS:
        assert session is not None
        assert (session.name, session.uid, session.end) == (name, uid, int(NOW.timestamp()) + SESSION_SECONDS)
    else:
        assert session is None
    assert OTHER.open(cookie, later) is None
    assert cookie.isascii()
    assert not set(cookie) & set(' ;,"\\')


def test_ended_session_is_forgotten_after_its_time() -> None:
    ended = EndedSessions()
    sessions = [Session("alice", "1", int(NOW.timestamp()) + number, str(number)) for number in range(1, 4)]
    for session in sessions[:2]:
        ended.add(session, NOW)
    assert [session in ended for session in sessions] == [True, True, False]
    assert Session("alice", "1", sessions[0].end, "other") not in ended
    ended.add(sessions[2], NOW + datetime.timedelta(seconds=2))
    assert [session in ended for session in sessions] == [False, False, True]


@given(st.integers(0, len(base64.urlsafe_b64decode(COOKIE)) * 8 - 1))
def test_no_bit_of_a_session_can_be_changed(bit: int) -> None:
    data = bytearray(base64.urlsafe_b64decode(COOKIE))
    data[bit // 8] ^= 1 << bit % 8
    assert SEALER.open(base64.urlsafe_b64encode(data).decode(), NOW) is None


@given(st.text(max_size=200))
def test_text_is_no_session(cookie: str) -> None:
    assert SEALER.open(cookie, NOW) is None


@pytest.mark.parametrize(
    "cookie",
    ["", "A", "AAAA", COOKIE[:-4], f"{COOKIE}AAAA", "A" * (MAX_COOKIE_LENGTH + 4), "\udc80"],
    ids=["empty", "one letter", "too short", "cut", "longer", "too long", "no text"],
)
def test_malformed_cookie_is_no_session(cookie: str) -> None:
    assert SEALER.open(cookie, NOW) is None


def test_sessions_of_one_user_differ() -> None:
    assert len({SEALER.seal("alice", "1", NOW) for _ in range(10)}) == 10


def test_key_is_made_once(tmp_path: Path) -> None:
    key = load_session_key(tmp_path)
    assert len(key) == KEY_BYTES
    assert load_session_key(tmp_path) == key
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"short")
    with pytest.raises(Refused, match="5 bytes"):
        load_session_key(tmp_path)


# --- csrf -------------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_texts_are_no_csrf_token_of_each_other(cookie: str, form: str) -> None:
    token = new_csrf_token()
    assert is_same_csrf_token(token, token)
    assert not is_same_csrf_token(token, form)
    assert not is_same_csrf_token(cookie, token)


@pytest.mark.parametrize("token", ["", "x", "x" * 31, "\udcff" * 40, "ü" * 40])
def test_short_or_odd_token_is_not_accepted(token: str) -> None:
    assert not is_same_csrf_token(token, token)
