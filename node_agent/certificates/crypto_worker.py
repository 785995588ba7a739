"""A program that does one cryptographic task and exits. Separate because its library takes 8 MB.

Only this program loads the library, so that no long-running process does. No other module imports this one.
"""

from __future__ import annotations

import sys

import msgspec

from api.pki import keys
from api.pki.pem import BadPem
from node_agent.certificates.crypto import (
    Inspect,
    Inspected,
    InvalidInput,
    KeyPair,
    MakeRequest,
    Result,
    SelfSign,
    SelfSigned,
    SigningRequest,
    Task,
)


def run_task(task: Task) -> Result:
    """Do a task and return its result."""
    try:
        match task:
            case MakeRequest():
                return _make_request(task)
            case SelfSign():
                return _self_sign(task)
            case Inspect():
                return _inspect(task)
    except BadPem as error:
        return InvalidInput(str(error))


def _make_request(task: MakeRequest) -> SigningRequest:
    key = task.key if _is_key(task.key) else keys.generate_key()
    return SigningRequest(key, keys.create_request(key, task.subject), keys.key_fingerprint(key, task.context))


def _is_key(key: bytes) -> bool:
    try:
        keys.key_fingerprint(key)
    except BadPem:
        return False
    return True


def _self_sign(task: SelfSign) -> SelfSigned:
    key = keys.generate_key()
    certificate = keys.self_signed(key, task.subject, task.now)
    return SelfSigned(KeyPair(key, certificate, keys.parse_certificate(certificate)))


def _inspect(task: Inspect) -> Inspected:
    if task.key is not None and not keys.matches_certificate(task.key, task.certificate):
        raise BadPem("the certificate is for another key")
    return Inspected(keys.parse_certificate(task.certificate))


def main() -> None:
    """Entry point of the program."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.msgpack.encode(run_task(task)))


if __name__ == "__main__":
    main()
