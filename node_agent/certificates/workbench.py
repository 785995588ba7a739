"""Does one of the tasks (`tasks.py`) with keys and certificates: MessagePack from standard input to standard output.

A program, so that its library is in no process that lasts; nothing else imports this.
"""

from __future__ import annotations

import sys

import msgspec

from api import keys
from api.pem import BadPem
from node_agent.certificates.tasks import Answer, Ask, Asking, Bad, Identity, Read, Sign, Signed, Task, Told


def answer(task: Task) -> Answer:
    """What comes of it."""
    try:
        match task:
            case Ask():
                return _asking(task)
            case Sign():
                return _signed(task)
            case Read():
                return _told(task)
    except BadPem as error:
        return Bad(str(error))


def _asking(task: Ask) -> Asking:
    key = task.held if _is_key(task.held) else keys.new_key()
    return Asking(key, keys.request(key, task.subject), keys.fingerprint(key, task.goes_with))


def _is_key(held: bytes) -> bool:
    try:
        keys.fingerprint(held)
    except BadPem:
        return False
    return True


def _signed(task: Sign) -> Signed:
    key = keys.new_key()
    certificate = keys.self_signed(key, task.subject, task.now)
    return Signed(Identity(key, certificate, keys.read(certificate)))


def _told(task: Read) -> Told:
    if task.key is not None and not keys.belongs(task.key, task.certificate):
        raise BadPem("the certificate is for another key")
    return Told(keys.read(task.certificate))


def main() -> None:
    """Entry point of the program."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(task)))


if __name__ == "__main__":
    main()
