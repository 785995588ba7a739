"""How a command ended, and how clients are told, in words of Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended by itself or was killed; 0 to 255. Of an attached container that ended too."""

    code: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The program could not be run or be listened to, in words for the user."""

    message: str


Outcome = Exited | Failed


def status(outcome: Outcome) -> bytes:
    """Give the Status that ends a command from the fourth protocol on."""
    match outcome:
        case Exited(0):
            found: dict[str, object] = {"metadata": {}, "status": "Success"}
        case Exited(code):
            found = {
                "metadata": {},
                "status": "Failure",
                "message": _words(code),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code & 0xFF)}]},
            }
        case Failed(message):
            found = {
                "metadata": {},
                "status": "Failure",
                "message": f"Internal error occurred: {message}",
                "reason": "InternalError",
                "details": {"causes": [{"message": message}]},
                "code": 500,
            }
    return msgspec.json.encode(found)


def text(outcome: Outcome) -> bytes:
    """Give the text that ends a command before the fourth protocol; nothing for success."""
    match outcome:
        case Exited(0):
            return b""
        case Exited(code):
            return _words(code).encode()
        case Failed(message):
            return f"Internal error occurred: {message}".encode()


def _words(code: int) -> str:
    return f"command terminated with non-zero exit code: exit status {code & 0xFF}"
