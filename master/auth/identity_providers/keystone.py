"""The provider Keystone: OpenStack's identity service checks names and passwords. Driver.

Source: the Identity API v3 of OpenStack. The token that it returns is not used.
"""

from __future__ import annotations

import msgspec

from master.auth.identity_providers.provider import (
    ProviderError,
    ProviderIdentity,
    encoded_credentials,
    reported_identity,
)
from master.auth.identity_providers.remote import RemoteClient


class KeystoneUser(msgspec.Struct, frozen=True):
    """The user of a token."""

    id: str
    name: str


class KeystoneToken(msgspec.Struct, frozen=True):
    """A token."""

    user: KeystoneUser


class KeystoneAnswer(msgspec.Struct, frozen=True):
    """The body of the answer to a request for a token."""

    token: KeystoneToken


class KeystoneProvider:
    """Checks passwords of the users of one domain.

    The id of a person is the user's name as Keystone has it, or with `use_keystone_identity` Keystone's id, which no
    later user of the same name gets.
    """

    def __init__(
        self, name: str, url: str, domain_name: str, client: RemoteClient, *, use_keystone_identity: bool
    ) -> None:
        self.name = name
        self._url = url.rstrip("/").removesuffix("/v3") + "/v3/auth/tokens"
        self._domain_name = domain_name
        self._client = client
        self._use_keystone_identity = use_keystone_identity

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is wrong. Raises ProviderError."""
        if encoded_credentials(username, password) is None:
            return None
        user = {"name": username, "domain": {"name": self._domain_name}, "password": password}
        identity = {"methods": ["password"], "password": {"user": user}}
        request = {"auth": {"identity": identity, "scope": "unscoped"}}
        answer = await self._client.request("POST", self._url, headers={"Accept": "application/json"}, json=request)
        if answer.status == 401:
            return None
        if answer.status != 201:
            raise ProviderError(f"{self._url}: found the status {answer.status}; 201 and 401 are accepted")
        found = answer.decode(KeystoneAnswer).token.user
        if not self._use_keystone_identity:
            return reported_identity(self.name, found.name)
        return reported_identity(self.name, found.id, preferred_username=found.name)
