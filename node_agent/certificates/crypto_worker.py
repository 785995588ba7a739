"""A program that does one cryptographic task and exits. Separate because its library takes 8 MB.

A program, so that its library is in no process that lasts; nothing else imports this.
"""

from __future__ import annotations

import sys

import msgspec

from api.pki import keys
from api.pki.pem import BadPem
from node_agent.certificates.crypto import (
    Answer,
    Inspect,
    Inspected,
    InvalidInput,
    KeyPair,
    MakeRequest,
    SelfSign,
    SelfSigned,
    SigningRequest,
    Task,
)


def answer(task: Task) -> Answer:
    """What comes of it."""
    try:
        match task:
            case MakeRequest():
                return _asking(task)
            case SelfSign():
                return _signed(task)
            case Inspect():
                return _told(task)
    except BadPem as error:
        return InvalidInput(str(error))


def _asking(task: MakeRequest) -> SigningRequest:
    key = task.held if _is_key(task.held) else keys.generate_key()
    return SigningRequest(key, keys.create_request(key, task.subject), keys.key_fingerprint(key, task.goes_with))


def _is_key(held: bytes) -> bool:
    try:
        keys.key_fingerprint(held)
    except BadPem:
        return False
    return True


def _signed(task: SelfSign) -> SelfSigned:
    key = keys.generate_key()
    certificate = keys.self_signed(key, task.subject, task.now)
    return SelfSigned(KeyPair(key, certificate, keys.parse_certificate(certificate)))


def _told(task: Inspect) -> Inspected:
    if task.key is not None and not keys.matches_certificate(task.key, task.certificate):
        raise BadPem("the certificate is for another key")
    return Inspected(keys.parse_certificate(task.certificate))


def main() -> None:
    """Entry point of the program."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(task)))


if __name__ == "__main__":
    main()
