"""The provider LDAP: searches a directory for the user and binds as what it finds. Driver.

Why the protocol is our own: docs/adr/0030-ldap-client.md.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from master.auth.identity_providers import ldap_protocol
from master.auth.identity_providers.bounded_threads import resolve
from master.auth.identity_providers.ldap_protocol import LDAPURL, Entry, LDAPProtocolError, Response, Result
from master.auth.identity_providers.provider import (
    ProviderError,
    ProviderIdentity,
    encoded_credentials,
    reported_identity,
)

MAX_MESSAGE_BYTES = 64 * 1024
MAX_LOGINS = 32
TIMEOUT = 10.0

DN = "dn"
"""The name by which an attribute of the configuration means the distinguished name."""

NO_SUCH_USER = b"cn=podlane-no-such-user,"
"""The beginning of a DN that no entry has."""

WRONG_PASSWORD = {ldap_protocol.INAPPROPRIATE_AUTHENTICATION, ldap_protocol.INVALID_CREDENTIALS}


class _Messages(asyncio.Protocol):
    """The messages of the server. At most one is kept beyond the limit of a message."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._error: Exception | None = None
        self._wakeup = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        if len(self._received) > MAX_MESSAGE_BYTES:
            self._error = LDAPProtocolError("the server sends more than was requested")
        else:
            self._received += data
        self._wakeup.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = self._error or exc or ConnectionResetError("the server closed the connection")
        self._wakeup.set()

    @property
    def is_empty(self) -> bool:
        return not self._received

    async def next(self) -> Response:
        while True:
            length = ldap_protocol.message_length(self._received, MAX_MESSAGE_BYTES)
            if length is not None and length <= len(self._received):
                message = bytes(self._received[:length])
                del self._received[:length]
                return ldap_protocol.parse_response(message)
            if self._error is not None:
                raise self._error
            self._wakeup.clear()
            await self._wakeup.wait()


class _Connection:
    """A connection to a directory, with one operation at a time."""

    def __init__(self, transport: asyncio.Transport, messages: _Messages) -> None:
        self._transport = transport
        self._messages = messages
        self._message_id = 0

    def _send(self, operation: bytes) -> None:
        self._message_id += 1
        self._transport.write(ldap_protocol.message(self._message_id, operation))

    async def _response(self, *tags: int) -> Response:
        response = await self._messages.next()
        if response.message_id != self._message_id or response.tag not in tags:
            raise LDAPProtocolError(f"found a message with the tag {response.tag:#04x}, which is no answer")
        return response

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        self._send(ldap_protocol.start_tls_request())
        response = await self._response(ldap_protocol.EXTENDED_RESPONSE)
        result = ldap_protocol.parse_result(response.content)
        if result.code != ldap_protocol.SUCCESS:
            raise ProviderError(f"StartTLS: {result}")
        # What came before TLS would be read as if it had come through TLS.
        if not self._messages.is_empty:
            raise LDAPProtocolError("found data between the answer to StartTLS and TLS")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self._messages, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the server closed the connection")
        self._transport = transport

    async def bind(self, dn: bytes, password: bytes) -> Result:
        self._send(ldap_protocol.bind_request(dn, password))
        return ldap_protocol.parse_result((await self._response(ldap_protocol.BIND_RESPONSE)).content)

    async def search(self, url: LDAPURL, search_filter: bytes, attributes: Iterable[str]) -> list[Entry]:
        """Return at most two entries. Referrals are not followed. Raises ProviderError."""
        self._send(
            ldap_protocol.search_request(
                url.base, url.scope, search_filter, attributes, max_entries=2, seconds=int(TIMEOUT)
            )
        )
        entries: list[Entry] = []
        while True:
            response = await self._response(
                ldap_protocol.SEARCH_RESULT_ENTRY,
                ldap_protocol.SEARCH_RESULT_REFERENCE,
                ldap_protocol.SEARCH_RESULT_DONE,
            )
            if response.tag == ldap_protocol.SEARCH_RESULT_ENTRY:
                entries.append(ldap_protocol.parse_entry(response.content))
            if response.tag == ldap_protocol.SEARCH_RESULT_DONE or len(entries) > 1:
                break
        if len(entries) < 2:
            result = ldap_protocol.parse_result(response.content)
            if result.code != ldap_protocol.SUCCESS:
                raise ProviderError(f"search: {result}")
        return entries

    def close(self) -> None:
        if not self._transport.is_closing():
            self._send(ldap_protocol.unbind_request())
        # A closure of TLS would wait for the server, which has nothing more to say.
        self._transport.abort()


class AttributeNames(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The attributes of each part of an identity. The first with a value counts; `dn` is the distinguished name."""

    id: tuple[str, ...]
    preferred_username: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    email: tuple[str, ...] = ()

    def requested(self) -> list[str]:
        """Return the attributes that the server is asked for."""
        names = dict.fromkeys((*self.id, *self.preferred_username, *self.name, *self.email))
        return [name for name in names if name.lower() != DN]


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory: where it is, and how the master binds to search. Without a DN the search is anonymous.

    `tls` is None for connections without TLS.
    """

    url: LDAPURL
    tls: ssl.SSLContext | None
    bind_dn: str = ""
    bind_password: str = field(default="", repr=False)


class LDAPProvider:
    """Checks passwords with a directory.

    The id of a person is the unpadded base64url of the bytes of an attribute, as OpenShift's.
    """

    def __init__(self, name: str, directory: Directory, attributes: AttributeNames, timeout: float = TIMEOUT) -> None:
        self.name = name
        self._directory = directory
        self._attributes = attributes
        self._timeout = timeout
        self._logins = 0

    @property
    def uses_tls(self) -> bool:
        """Return whether passwords are sent with TLS."""
        return self._directory.tls is not None

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is wrong. Raises ProviderError."""
        credentials = encoded_credentials(username, password)
        if credentials is None:
            return None
        url = self._directory.url
        address = f"{url.host}:{url.port}"
        if self._logins >= MAX_LOGINS:
            raise ProviderError(f"LDAP server {address}: {self._logins} logins are running; try again later")
        self._logins += 1
        try:
            async with asyncio.timeout(self._timeout):
                entry = await self._authenticate(*credentials)
        except TimeoutError:
            raise ProviderError(f"LDAP server {address}: no answer within {self._timeout:g} s") from None
        except (OSError, ValueError, LDAPProtocolError, ProviderError) as error:
            raise ProviderError(f"LDAP server {address}: {error}") from None
        finally:
            self._logins -= 1
        return None if entry is None else self._identity(entry)

    async def _authenticate(self, name: bytes, password: bytes) -> Entry | None:
        """Return the entry of the user; None if the name or the password is wrong."""
        directory = self._directory
        url = directory.url
        async with self._connect() as connection:
            if directory.bind_dn:
                result = await connection.bind(directory.bind_dn.encode(), directory.bind_password.encode())
                if result.code != ldap_protocol.SUCCESS:
                    raise ProviderError(f"bind as bindDN: {result}")
            search_filter = ldap_protocol.and_filter(url.filter, ldap_protocol.equality_filter(url.attribute, name))
            entries = await connection.search(url, search_filter, self._attributes.requested())
            if len(entries) > 1:
                raise ProviderError(f"multiple entries found matching {name.decode()!r:.80}")
            if not entries:
                # As many requests as for a user that exists, so the duration does not tell which names exist.
                await connection.bind(NO_SUCH_USER + url.base, password)
                return None
            # A bind with an empty DN is anonymous, whatever the password.
            if not entries[0].dn:
                raise ProviderError("found an entry without a DN")
            result = await connection.bind(entries[0].dn, password)
            if result.code in WRONG_PASSWORD:
                return None
            if result.code != ldap_protocol.SUCCESS:
                raise ProviderError(f"bind as the user: {result}")
            return entries[0]

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[_Connection]:
        """Connect, with TLS unless the directory is insecure."""
        url, tls = self._directory.url, self._directory.tls
        connection = await self._open(url, tls if url.is_ldaps else None)
        try:
            if tls is not None and not url.is_ldaps:
                await connection.start_tls(tls, url.host)
            yield connection
        finally:
            connection.close()

    async def _open(self, url: LDAPURL, tls: ssl.SSLContext | None) -> _Connection:
        """Connect to the first address of the host that accepts. Each has its part of the time."""
        loop = asyncio.get_running_loop()
        addresses = await resolve(url.host, url.port)
        failures: list[OSError] = []
        for _, address in addresses:
            try:
                async with asyncio.timeout(self._timeout / len(addresses)):
                    transport, messages = await loop.create_connection(
                        _Messages, address, url.port, ssl=tls, server_hostname=url.host if tls else None
                    )
            except OSError as error:
                failures.append(error)
            else:
                return _Connection(transport, messages)
        raise failures[0]

    def _identity(self, entry: Entry) -> ProviderIdentity:
        names = self._attributes
        user_id = base64.urlsafe_b64encode(_first(entry, names.id)).rstrip(b"=").decode()
        if not user_id:
            raise ProviderError(f"{self.name}: the entry of the user has none of the attributes {', '.join(names.id)}")
        return reported_identity(
            self.name,
            user_id,
            name=_first(entry, names.name).decode(errors="replace"),
            email=_first(entry, names.email).decode(errors="replace"),
            preferred_username=_first(entry, names.preferred_username).decode(errors="replace"),
        )


def _first(entry: Entry, names: tuple[str, ...]) -> bytes:
    """Return the first value of the first attribute that has one."""
    for name in names:
        values = (entry.dn,) if name.lower() == DN else entry.attributes.get(name.lower(), ())
        if value := next(filter(None, values), b""):
            return value
    return b""
