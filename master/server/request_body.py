"""The body of a request, within limits of size and time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from master import errors

MAX_BODY_BYTES = 3 << 20
BODY_TIMEOUT_SECONDS = 30.0


async def read_body(http: web.Request, seconds: float) -> bytes:
    """The whole body of a request. Raises StatusError."""
    try:
        async with asyncio.timeout(seconds):
            return await http.read()
    except TimeoutError:
        raise errors.status_error(408, "Timeout", f"the body did not come within {seconds:.0f} seconds") from None
    except web.HTTPRequestEntityTooLarge:
        message = f"the body is larger than {MAX_BODY_BYTES} bytes"
        raise errors.status_error(413, "RequestEntityTooLarge", message) from None
    except web.RequestPayloadError as error:
        raise errors.bad_request(f"the body is not as its headers say: {error}") from None
