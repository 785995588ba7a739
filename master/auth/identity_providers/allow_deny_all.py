"""The providers AllowAll, which accepts every password, and DenyAll, which accepts none. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from master.auth.identity_providers.provider import ProviderIdentity, encoded_credentials, is_text


@dataclass(frozen=True, slots=True)
class AllowAllProvider:
    """Accepts every password for every name. For labs: whoever reaches the master can be anybody."""

    name: str

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is blank."""
        username = username.strip()
        if not password.strip() or not is_text(username) or encoded_credentials(username, password) is None:
            return None
        return ProviderIdentity(self.name, username)


@dataclass(frozen=True, slots=True)
class DenyAllProvider:
    """Accepts nobody."""

    name: str

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return None."""
        del username, password
        return None
