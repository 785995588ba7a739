"""Requests that run on: which of them end when a credential becomes invalid."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from api.core.config import Secret
from api.core.oauth import token_name
from api.meta.types import ObjectMeta
from master.auth.authentication import BOOTSTRAP_TOKEN_NAMESPACE, BOOTSTRAP_TOKEN_TYPE, Authentication, Authenticator
from master.auth.oauth_tokens import OAuthTokenAuthenticator
from master.auth.service_account_tokens import TokenSigner, secret_token_claims
from master.errors import StatusError
from master.resources.configuration import ServiceAccount
from master.resources.metadata import format_time, with_metadata
from master.resources.oauth import OAuthAccessToken
from master.resources.scheme import STORED_TYPES
from master.resources.users import User
from master.server.open_requests import OpenRequests
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put

CREATED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SIGNER = TokenSigner(ec.generate_private_key(ec.SECP256R1()))
ALICE = User(metadata=ObjectMeta(name="alice", uid="1"))
RAW, IDLE = f"sha256~{'r' * 43}", f"sha256~{'i' * 43}"
BOOTSTRAP = "abcdef.0123456789abcdef"


def access_token(raw: str, expires_in: int, inactivity_timeout: int) -> OAuthAccessToken:
    return OAuthAccessToken(
        metadata=ObjectMeta(name=token_name(raw), creation_timestamp=format_time(CREATED)),
        client_name="app",
        expires_in=expires_in,
        scopes=("user:full",),
        user_name="alice",
        user_uid="1",
        inactivity_timeout_seconds=inactivity_timeout,
    )


TOKEN, IDLE_TOKEN = access_token(RAW, 600, 0), access_token(IDLE, 0, 300)
ROBOT = ServiceAccount(metadata=ObjectMeta(name="robot", namespace="red", uid="2"))
ROBOT_SECRET = Secret(metadata=ObjectMeta(name="robot-token", namespace="red", uid="3"))
ROBOT_TOKEN = SIGNER.sign(secret_token_claims(ROBOT, ROBOT_SECRET, CREATED))
SHORT_TOKEN = SIGNER.sign({**secret_token_claims(ROBOT, ROBOT_SECRET, CREATED), "exp": int(CREATED.timestamp()) + 600})
BOOTSTRAP_SECRET = Secret(
    metadata=ObjectMeta(name="bootstrap-token-abcdef", namespace=BOOTSTRAP_TOKEN_NAMESPACE, uid="4"),
    type=BOOTSTRAP_TOKEN_TYPE,
    data={
        "token-id": b"abcdef",
        "token-secret": b"0123456789abcdef",
        "usage-bootstrap-authentication": b"true",
        "expiration": b"2026-01-01T00:10:00Z",
    },
)
CERTIFICATE = {"subject": ((("commonName", "ann"),),), "notAfter": "Jan  1 00:10:00 2026 GMT"}
OBJECTS = (ALICE, TOKEN, IDLE_TOKEN, ROBOT, ROBOT_SECRET, BOOTSTRAP_SECRET)


class ReviewTestbed:
    """A storage, a clock that counts seconds from CREATED, and the open requests."""

    def __init__(self, storage: SQLiteStorage) -> None:
        self.storage = storage
        self.seconds = 0.0
        tokens = OAuthTokenAuthenticator(storage, self._now)
        self.authenticator = Authenticator(storage, SIGNER, tokens, self._now)
        self.requests = OpenRequests(storage, self.authenticator.is_valid)
        self.open: dict[str, asyncio.Task[None]] = {}

    def _now(self) -> datetime.datetime:
        return CREATED + datetime.timedelta(seconds=self.seconds)

    def authenticate(self, name: str) -> Authentication:
        """Return what a credential of CREDENTIALS authenticates."""
        credential = CREDENTIALS[name]
        if isinstance(credential, dict):
            return self.authenticator.authenticate(credential, "")
        return self.authenticator.authenticate(None, f"Bearer {credential}" if credential else "")

    async def start(self, *names: str) -> None:
        """Begin a request with each of the credentials."""
        for name in names:
            self.open[name] = asyncio.create_task(self._run(self.authenticate(name)))
        await asyncio.sleep(0)

    async def _run(self, authentication: Authentication) -> None:
        with self.requests.open(authentication):
            await asyncio.Event().wait()

    async def ended(self) -> set[str]:
        """Return the requests that have ended since the last call."""
        for _ in range(3):
            await asyncio.sleep(0)
        ended = {name for name, task in self.open.items() if task.done()}
        for name in ended:
            del self.open[name]
        return ended


CREDENTIALS: dict[str, Any] = {
    "access token": RAW,
    "access token with inactivity timeout": IDLE,
    "service account": ROBOT_TOKEN,
    "service account until": SHORT_TOKEN,
    "bootstrap token": BOOTSTRAP,
    "certificate": CERTIFICATE,
    "certificate without an end": {"subject": CERTIFICATE["subject"]},
    "none": "",
}


@pytest.fixture
async def testbed(tmp_path: Path) -> AsyncIterator[ReviewTestbed]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(*map(put, OBJECTS))
    testbed = ReviewTestbed(storage)
    yield testbed
    for task in testbed.open.values():
        task.cancel()
    await asyncio.gather(*testbed.open.values(), return_exceptions=True)
    assert not testbed.requests._tasks
    await storage.close()


@pytest.mark.parametrize(
    ("seconds", "gone"),
    [
        (299.0, set()),
        (301.0, {"access token with inactivity timeout"}),
        (
            600.0,
            {
                "access token with inactivity timeout",
                "access token",
                "service account until",
                "bootstrap token",
                "certificate",
            },
        ),
    ],
)
async def test_requests_end_with_the_time_of_their_credentials(
    testbed: ReviewTestbed, seconds: float, gone: set[str]
) -> None:
    await testbed.start(*CREDENTIALS)
    testbed.seconds = seconds
    await testbed.requests.review()
    assert await testbed.ended() == gone
    for name in gone:
        with pytest.raises(StatusError, match="Unauthorized"):
            testbed.authenticate(name)


@pytest.mark.parametrize(
    ("obj", "gone"),
    [
        (TOKEN, {"access token"}),
        (ALICE, {"access token", "access token with inactivity timeout"}),
        (ROBOT, {"service account", "service account until"}),
        (ROBOT_SECRET, {"service account", "service account until"}),
        (BOOTSTRAP_SECRET, {"bootstrap token"}),
    ],
)
@pytest.mark.parametrize(
    "end", [lambda obj: (delete(obj),), lambda obj: (put(with_metadata(obj, uid="other")),)], ids=["deleted", "other"]
)
async def test_requests_end_with_the_objects_of_their_credentials(
    testbed: ReviewTestbed, obj: Any, gone: set[str], end: Callable[[Any], Any]
) -> None:
    await testbed.start(*CREDENTIALS)
    await testbed.storage.write(*end(obj))
    await testbed.requests.review()
    if obj is TOKEN and testbed.storage.get(put(TOKEN).key) is not None:
        gone = set()  # The object of a token needs no uid: its name is the hash of the token.
    assert await testbed.ended() == gone


@pytest.mark.parametrize("obj", [TOKEN, ALICE])
async def test_deletion_of_a_token_or_a_user_is_reviewed_at_once(testbed: ReviewTestbed, obj: Any) -> None:
    await testbed.start("access token", "service account")
    running = asyncio.create_task(testbed.requests.run())
    task = testbed.open.pop("access token")
    await testbed.storage.write(delete(obj))
    async with asyncio.timeout(20):
        await asyncio.wait((task,))
    assert task.cancelled()
    assert await testbed.ended() == set()
    running.cancel()


async def test_review_is_no_use_of_a_token(testbed: ReviewTestbed) -> None:
    await testbed.start("access token with inactivity timeout")
    testbed.seconds = 250.0
    await testbed.requests.review()
    testbed.seconds = 301.0
    await testbed.requests.review()
    assert await testbed.ended() == {"access token with inactivity timeout"}


async def test_all_requests_of_a_credential_end(testbed: ReviewTestbed) -> None:
    authentication = testbed.authenticate("access token")
    tasks = [asyncio.create_task(testbed._run(authentication)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await testbed.storage.write(delete(TOKEN))
    await testbed.requests.review()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_request_that_has_ended_is_not_cancelled(testbed: ReviewTestbed) -> None:
    with testbed.requests.open(testbed.authenticate("access token")):
        pass
    await testbed.storage.write(delete(TOKEN))
    await testbed.requests.review()
    await asyncio.sleep(0)
