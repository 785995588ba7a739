"""What the library that speaks to Docker raises → NotReady, Refused or Gone, with Docker's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import docker.errors
import requests
import urllib3.exceptions

from reconcile.errors import Gone, NotReady, Refused

T = TypeVar("T")


def mapped(act: Callable[[], T]) -> T:
    """What it returns. Raises NotReady, Refused or Gone."""
    try:
        return act()
    except docker.errors.NotFound as error:
        raise Gone(f"Docker: {error.explanation or error}") from None
    except docker.errors.APIError as error:
        words = str(error.explanation or error)
        raise (NotReady if is_passing(words) else Refused)(f"Docker: {words}") from None
    except (
        docker.errors.DockerException,
        docker.errors.StreamParseError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


def is_passing(words: str) -> bool:
    """Whether an error is not about our wish, and may be gone the next time."""
    return any(
        sign in words for sign in ("connection refused", "no such host", "timeout", "i/o timeout", "unreachable")
    )
