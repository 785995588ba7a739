"""Requests to the crypto worker: keys, certificate requests and the contents of certificates.

The library for keys takes 8 MB and is needed about once a year, so it runs in a process of its own.
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
TIMEOUT_SECONDS = 30.0
"""Time limit of a task, which takes about 0.1 s."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate as PEM, and the content of the certificate."""

    key: bytes
    certificate: bytes
    info: Certificate

    @property
    def pem(self) -> bytes:
        """Certificate and key in one PEM file."""
        return self.certificate.rstrip() + b"\n" + self.key


class MakeRequest(msgspec.Struct, frozen=True, tag=True):
    """The task to create a certificate request.

    `key` is the key to use; if it is not a valid key, a new one is generated. The fingerprint in the result is that of
    the key and of `context`.
    """

    key: bytes
    subject: Subject
    context: str


class SigningRequest(msgspec.Struct, frozen=True, tag=True):
    """The result of MakeRequest: a key, and the request that it signed."""

    key: bytes
    request: bytes
    fingerprint: str


class SelfSign(msgspec.Struct, frozen=True, tag=True):
    """The task to generate a key with a self-signed certificate."""

    subject: Subject
    now: datetime.datetime


class SelfSigned(msgspec.Struct, frozen=True, tag=True):
    """The result of SelfSign."""

    pair: KeyPair


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """The task to parse a certificate, and to check that it belongs to the key if one is given."""

    certificate: bytes
    key: bytes | None = None


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """The result of Inspect."""

    certificate: Certificate


class InvalidInput(msgspec.Struct, frozen=True, tag=True):
    """The result of a task whose input was not a valid key or certificate."""

    reason: str


Task = MakeRequest | SelfSign | Inspect
Result = SigningRequest | SelfSigned | Inspected | InvalidInput
R = TypeVar("R", SigningRequest, SelfSigned, Inspected)


async def make_request(key: bytes, subject: Subject, context: str) -> SigningRequest:
    """Create a certificate request with a key, or with a new one if the key is not valid. Raises NotReady."""
    return await _run_task(MakeRequest(key, subject, context), SigningRequest)


async def self_signed_pair(subject: Subject, now: datetime.datetime) -> KeyPair:
    """Generate a key with a self-signed server certificate. Raises NotReady."""
    return (await _run_task(SelfSign(subject, now), SelfSigned)).pair


async def inspect_certificate(certificate: bytes) -> Certificate:
    """Return the content of the first certificate of a chain. Raises BadPem and NotReady."""
    return (await _run_task(Inspect(certificate), Inspected)).certificate


async def load_key_pair(key: bytes, certificate: bytes) -> KeyPair:
    """Return a key and its certificate. Raises BadPem if they do not belong together, and NotReady."""
    return KeyPair(key, certificate, (await _run_task(Inspect(certificate, key), Inspected)).certificate)


async def _run_task(task: Task, result_type: type[R]) -> R:
    output = await asyncio.to_thread(_run_worker, msgspec.msgpack.encode(task))
    result = msgspec.msgpack.decode(output, type=Result)
    if isinstance(result, InvalidInput):
        raise BadPem(result.reason)
    if not isinstance(result, result_type):
        raise TypeError(f"{PROGRAM} answered {type(task).__name__} with {type(result).__name__}")
    return result


def _run_worker(task: bytes) -> bytes:
    """Run the worker. Keys go only through pipes, so that no file and no argument shows them."""
    command = [sys.executable, "-P", "-m", PROGRAM]
    try:
        process = subprocess.run(command, input=task, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotReady(f"the program for keys and certificates failed: {error}") from None
    return process.stdout
