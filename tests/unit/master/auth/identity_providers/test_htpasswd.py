"""Checks of passwords with files of `htpasswd`. The file beside this one is written by that of apache2-utils 2.4."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.auth.identity_providers import htpasswd
from master.auth.identity_providers.bounded_threads import BoundedThreads
from master.auth.identity_providers.htpasswd import HTPasswdProvider, PasswordFile, apr1, parse_password_file
from master.auth.identity_providers.provider import ProviderError, ProviderIdentity

FILE = Path(__file__).parent / "htpasswd"
LONG = "a long password of more than sixteen characters, and then some"
PASSWORDS = {
    "bcrypt4": "secret",
    "bcrypt6": "pässwörd",
    "bcryptlong": "x" * 80,
    "md5": "secret",
    "md5long": LONG,
    "md5utf8": "pässwörd",
    "sha": "secret",
}
COST_4 = bcrypt.hashpw(b"secret", b"$2b$04$abcdefghijklmnopqrstuu").decode()


async def authenticate(path: Path, name: str, password: str) -> ProviderIdentity | None:
    return await HTPasswdProvider("file", path).authenticate_password(name, password)


@pytest.mark.parametrize(("name", "password"), PASSWORDS.items())
async def test_hashes_of_htpasswd_are_checked(name: str, password: str) -> None:
    assert await authenticate(FILE, name, password) == ProviderIdentity("file", name)
    assert await authenticate(FILE, name, f"X{password}") is None
    assert await authenticate(FILE, "nobody", password) is None


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
async def test_bcrypt_prefixes_are_accepted(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"alice:{prefix}{COST_4[4:]}\n")
    assert await authenticate(tmp_path / "file", "alice", "secret")
    assert not await authenticate(tmp_path / "file", "alice", "Secret")


@pytest.mark.parametrize(
    ("name", "text"),
    [("crypt", "crypt is not supported"), ("sha512", "unknown form")],
)
async def test_other_hashes_are_an_error(name: str, text: str) -> None:
    with pytest.raises(ProviderError, match=text):
        await authenticate(FILE, name, "secret")


@pytest.mark.parametrize("hashed", ["$2b$31$", "$2b$03$", "$2x$04$", "$2b$04$short", "", "{SSHA}AAAA"])
async def test_unknown_hashes_admit_nobody(hashed: str, tmp_path: Path) -> None:
    tail = COST_4[7:] if hashed.endswith("$") else ""
    (tmp_path / "file").write_text(f"alice:{hashed}{tail}\nbob:{COST_4}\n")
    for password in ("secret", "", hashed):
        try:
            assert await authenticate(tmp_path / "file", "alice", password) is None
        except ProviderError as error:
            assert "unknown form" in str(error)  # noqa: PT017 - either result is right
    assert await authenticate(tmp_path / "file", "bob", "secret")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("md5", ""),
        ("", "secret"),
        ("md5", "x" * 1025),
        ("md5", "secret\0"),
        ("md5\0", "secret"),
        ("md5", "\udcff"),
        ("a:b", "secret"),
        ("md5:$apr1$e38vgSTm$JgkT9g3SMFBaFCUYx4jAd0", "secret"),
    ],
)
async def test_unusable_names_and_passwords_are_wrong(name: str, password: str) -> None:
    assert await authenticate(FILE, name, password) is None


async def test_names_are_cut_to_255_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"{'x' * 255}:{COST_4}\n")
    assert await authenticate(tmp_path / "file", "x" * 300, "secret") == ProviderIdentity("file", "x" * 255)
    assert await authenticate(tmp_path / "file", "x" * 254, "secret") is None


def test_lines_are_parsed() -> None:
    content = b"alice:1\r\n\r\nno colon\nbob:2\n  carol:3  \nalice:4\n:5"
    parsed, warnings = parse_password_file(content)
    assert parsed.hashes == {b"alice": b"4", b"bob": b"2", b"carol": b"3", b"": b"5"}
    assert warnings == ["lines without a colon are skipped: 3", "lines of users that had one replace it: 6"]


async def test_a_changed_file_is_read_again_and_a_missing_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"alice:{COST_4}\n")
    provider = HTPasswdProvider("file", path)
    assert await provider.authenticate_password("alice", "secret")
    path.write_text(f"robert:{COST_4}\n")
    assert not await provider.authenticate_password("alice", "secret")
    assert await provider.authenticate_password("robert", "secret")
    path.unlink()
    assert await provider.authenticate_password("robert", "secret")
    with path.open("wb") as large:
        os.truncate(large.fileno(), htpasswd.MAX_FILE_BYTES + 1)
    assert await provider.authenticate_password("robert", "secret")
    with pytest.raises(ProviderError, match="No such file"):
        await authenticate(tmp_path / "missing", "alice", "secret")


async def test_users_log_in_while_the_file_is_replaced(tmp_path: Path) -> None:
    path, new = tmp_path / "file", tmp_path / "new"
    path.write_text(f"alice:{COST_4}\n")
    provider = HTPasswdProvider("file", path)
    for number in range(3):
        logins = [asyncio.create_task(provider.authenticate_password("alice", "secret")) for _ in range(5)]
        new.write_text(f"alice:{COST_4}\nuser{number}:{COST_4}\n")
        new.replace(path)
        assert await asyncio.gather(*logins) == [ProviderIdentity("file", "alice")] * 5
        assert await provider.authenticate_password(f"user{number}", "secret")
        assert not await provider.authenticate_password(f"user{number - 1}", "secret")


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the work of checks: `apr1`, or the cost of each bcrypt check."""
    done: list[str] = []

    def check(password: bytes, hashed: bytes) -> bool:
        done.append(hashed[4:6].decode())
        return password == b"secret"

    def apr1_counted(password: bytes, salt: bytes) -> bytes:
        done.append("apr1")
        return apr1(password, salt)

    monkeypatch.setattr(htpasswd, "check_bcrypt", check)
    monkeypatch.setattr(htpasswd, "apr1", apr1_counted)
    return done


@pytest.mark.parametrize("highest", [4, 7])
@pytest.mark.parametrize("has_apr1", [True, False])
def test_a_check_takes_the_same_work_for_every_name(rounds: list[str], highest: int, has_apr1: bool) -> None:
    lines = [f"cost{cost}:$2y${cost:02}${'x' * 53}" for cost in range(4, highest + 1)]
    lines += ["sha:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "crypt:.tx/YJ/fY3W8U"]
    lines += ["md5:$apr1$e38vgSTm$JgkT9g3SMFBaFCUYx4jAd0"] if has_apr1 else []
    users, _ = parse_password_file("\n".join(lines).encode())
    work = set()
    for name in (*users.hashes, b"nobody"):
        for password in (b"secret", b"wrong"):
            rounds.clear()
            try:
                is_correct = users.check(name, password)
            except ProviderError:
                is_correct = False
            assert is_correct == (password == b"secret" and name not in {b"nobody", b"crypt"})
            work.add((rounds.count("apr1"), sum(2 ** int(cost) for cost in rounds if cost != "apr1")))
    assert work == {(int(has_apr1), 2**highest)}


def test_a_file_without_bcrypt_needs_no_bcrypt(rounds: list[str]) -> None:
    assert not PasswordFile().check(b"nobody", b"secret")
    assert rounds == []


async def test_checks_beyond_the_queue_are_rejected() -> None:
    threads = BoundedThreads("test", threads=1, max_waiting=2)
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def check() -> bool:
        loop.call_soon_threadsafe(begun.set)
        return asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    running = [asyncio.create_task(threads.run(check)) for _ in range(3)]
    await begun.wait()
    with pytest.raises(ProviderError, match="3 checks are running or waiting"):
        await threads.run(check)
    go_on.set()
    assert await asyncio.gather(*running) == [True] * 3
    assert await threads.run(check)


@given(st.binary(max_size=300))
def test_any_content_is_parsed(content: bytes) -> None:
    users, _ = parse_password_file(content)
    for name, hashed in users.hashes.items():
        with contextlib.suppress(ProviderError):
            assert not PasswordFile({name: hashed}).check(name, b"secret")
