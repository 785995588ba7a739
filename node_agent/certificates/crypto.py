"""Asks the crypto worker for keys, requests and certificate contents.

Its library takes 8 MB, and is needed for a moment a year.
"""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from api.pki.pem import BadPem, Certificate, Subject
from reconcile.errors import NotReady

PROGRAM = "node_agent.certificates.crypto_worker"
SECONDS = 30.0
"""It takes a tenth of one."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key and the certificate for it, as PEM, and what the certificate says."""

    key: bytes
    certificate: bytes
    says: Certificate

    @property
    def together(self) -> bytes:
        """Both, as one file holds them."""
        return self.certificate.rstrip() + b"\n" + self.key


class MakeRequest(msgspec.Struct, frozen=True, tag=True):
    """Write a request for a certificate. `held` is the key for it; if it is none, another is made.

    `fingerprint` of the answer follows from the key and from `goes_with`.
    """

    held: bytes
    subject: Subject
    goes_with: str


class SigningRequest(msgspec.Struct, frozen=True, tag=True):
    """The answer: a key, and the request that is signed by it."""

    key: bytes
    request: bytes
    fingerprint: str


class SelfSign(msgspec.Struct, frozen=True, tag=True):
    """Make a key, and a certificate for it that nobody vouches for."""

    subject: Subject
    now: datetime.datetime


class SelfSigned(msgspec.Struct, frozen=True, tag=True):
    """The answer."""

    identity: KeyPair


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Say what a certificate says, and that it belongs to the key if there is one."""

    certificate: bytes
    key: bytes | None = None


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """The answer."""

    certificate: Certificate


class InvalidInput(msgspec.Struct, frozen=True, tag=True):
    """The answer when it was no key or no certificate that was given."""

    why: str


Task = MakeRequest | SelfSign | Inspect
Answer = SigningRequest | SelfSigned | Inspected | InvalidInput
A = TypeVar("A", SigningRequest, SelfSigned, Inspected)


async def make_request(held: bytes, subject: Subject, goes_with: str) -> SigningRequest:
    """A request for a certificate, with the key that is held or a new one. Raises NotReady."""
    return await _done(MakeRequest(held, subject, goes_with), SigningRequest)


async def self_signed_pair(subject: Subject, now: datetime.datetime) -> KeyPair:
    """A new key and a server's certificate that nobody vouches for. Raises NotReady."""
    return (await _done(SelfSign(subject, now), SelfSigned)).identity


async def inspect_certificate(certificate: bytes) -> Certificate:
    """What the first certificate of a chain says. Raises BadPem and NotReady."""
    return (await _done(Inspect(certificate), Inspected)).certificate


async def load_key_pair(key: bytes, certificate: bytes) -> KeyPair:
    """Both, if they belong together. Raises BadPem and NotReady."""
    return KeyPair(key, certificate, (await _done(Inspect(certificate, key), Inspected)).certificate)


async def _done(task: Task, kind: type[A]) -> A:
    answer = msgspec.msgpack.decode(await asyncio.to_thread(_run, msgspec.msgpack.encode(task)), type=Answer)
    if isinstance(answer, InvalidInput):
        raise BadPem(answer.why)
    if not isinstance(answer, kind):
        raise TypeError(f"{PROGRAM} answered {type(task).__name__} with {type(answer).__name__}")
    return answer


def _run(task: bytes) -> bytes:
    """Keys go through pipes alone: neither files nor arguments show them."""
    command = [sys.executable, "-P", "-m", PROGRAM]
    try:
        done = subprocess.run(command, input=task, stdout=subprocess.PIPE, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotReady(f"keys and certificates cannot be worked on: {error}") from None
    return done.stdout
