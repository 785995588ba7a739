"""The provider BasicAuth: a remote server checks names and passwords by HTTP Basic authentication. Driver."""

from __future__ import annotations

import base64

import msgspec

from master.auth.identity_providers.provider import (
    ProviderError,
    ProviderIdentity,
    encoded_credentials,
    reported_identity,
)
from master.auth.identity_providers.remote import RemoteClient


class RemoteUser(msgspec.Struct, frozen=True):
    """The body of the server's answer: a user or an error."""

    sub: str = ""
    name: str = ""
    preferred_username: str = ""
    email: str = ""
    error: str = ""


class BasicAuthProvider:
    """Checks passwords with a server: 401 is no, 200 with `sub` in its JSON is yes, all else is an error."""

    def __init__(self, name: str, url: str, client: RemoteClient) -> None:
        self.name = name
        self._url = url
        self._client = client

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is wrong. Raises ProviderError.

        A name with a colon is wrong, because the part after it would be read as the password.
        """
        credentials = encoded_credentials(username, password)
        if credentials is None or ":" in username:
            return None
        authorization = base64.b64encode(b":".join(credentials)).decode()
        headers = {"Authorization": f"Basic {authorization}", "Accept": "application/json"}
        answer = await self._client.request("GET", self._url, headers=headers)
        if answer.status == 401:
            return None
        if answer.status != 200:
            raise ProviderError(f"{self._url}: found the status {answer.status}; 200 and 401 are accepted")
        user = answer.decode(RemoteUser)
        if user.error:
            raise ProviderError(f"{self._url}: {user.error!r:.200}")
        return reported_identity(
            self.name, user.sub, name=user.name, email=user.email, preferred_username=user.preferred_username
        )
