"""The part of LDAP version 3 that checks a password: bind, search and StartTLS. Pure.

Sources: RFC 4511 (messages, encoded in BER), RFC 4515 (filters as text), RFC 4516 (URLs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

MAX_FILTER_DEPTH = 32

SUCCESS, INAPPROPRIATE_AUTHENTICATION, INVALID_CREDENTIALS, SIZE_LIMIT_EXCEEDED = 0, 48, 49, 4

_BOOLEAN, _INTEGER, _OCTET_STRING, _ENUMERATED, _SEQUENCE = 0x01, 0x02, 0x04, 0x0A, 0x30
_BIND_REQUEST, BIND_RESPONSE, _UNBIND_REQUEST, _SEARCH_REQUEST = 0x60, 0x61, 0x42, 0x63
SEARCH_RESULT_ENTRY, SEARCH_RESULT_DONE, SEARCH_RESULT_REFERENCE = 0x64, 0x65, 0x73
_EXTENDED_REQUEST, EXTENDED_RESPONSE = 0x77, 0x78
_START_TLS = b"1.3.6.1.4.1.1466.20037"
_NO_ATTRIBUTES = b"1.1"
_NEVER_DEREFERENCE = 0

_ATTRIBUTE = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]*|\d+(?:\.\d+)+)(?:;[A-Za-z0-9-]+)*")


class LDAPProtocolError(Exception):
    """A message of the server that is not LDAP, or is larger than accepted."""


def encode(tag: int, *contents: bytes) -> bytes:
    """Return an element of BER."""
    content = b"".join(contents)
    if len(content) < 0x80:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _integer(value: int, tag: int = _INTEGER) -> bytes:
    return encode(tag, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _string(value: bytes, tag: int = _OCTET_STRING) -> bytes:
    return encode(tag, value)


def bind_request(dn: bytes, password: bytes) -> bytes:
    """Return a simple bind."""
    return encode(_BIND_REQUEST, _integer(3), _string(dn), _string(password, 0x80))


def start_tls_request() -> bytes:
    """Return the request to continue with TLS."""
    return encode(_EXTENDED_REQUEST, _string(_START_TLS, 0x80))


def unbind_request() -> bytes:
    """Return the request that ends a connection."""
    return encode(_UNBIND_REQUEST)


def search_request(
    base: bytes, scope: int, search_filter: bytes, attributes: Iterable[str], *, max_entries: int, seconds: int
) -> bytes:
    """Return a search. Aliases are not dereferenced."""
    names = [_string(name.encode()) for name in attributes] or [_string(_NO_ATTRIBUTES)]
    return encode(
        _SEARCH_REQUEST,
        _string(base),
        _integer(scope, _ENUMERATED),
        _integer(_NEVER_DEREFERENCE, _ENUMERATED),
        _integer(max_entries),
        _integer(seconds),
        encode(_BOOLEAN, b"\0"),
        search_filter,
        encode(_SEQUENCE, *names),
    )


def message(message_id: int, operation: bytes) -> bytes:
    """Return a message with an operation."""
    return encode(_SEQUENCE, _integer(message_id), operation)


def message_length(received: bytes | bytearray, max_bytes: int) -> int | None:
    """Return the length of the first message in what was received; None if more is needed to know it.

    Raises LDAPProtocolError if it is no message or larger than accepted.
    """
    if received and received[0] != _SEQUENCE:
        raise LDAPProtocolError(f"found a first byte of {received[0]:#04x}; LDAP messages begin with 0x30")
    if len(received) < 2:
        return None
    header = 2
    length = received[1]
    if length >= 0x80:
        header += length & 0x7F
        if not 3 <= header <= 6:
            raise LDAPProtocolError("found a message whose length has an unknown form")
        if len(received) < header:
            return None
        length = int.from_bytes(received[2:header], "big")
    if header + length > max_bytes:
        raise LDAPProtocolError(f"found a message of {header + length} bytes; at most {max_bytes} are accepted")
    return header + length


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the elements in the content of another. Raises LDAPProtocolError."""
    position = 0
    while position < len(content):
        header = position + 2
        if header > len(content):
            raise LDAPProtocolError("found an element that is cut off")
        tag, length = content[position], content[position + 1]
        if length >= 0x80:
            digits = length & 0x7F
            if not 1 <= digits <= 4 or header + digits > len(content):
                raise LDAPProtocolError("found an element whose length has an unknown form")
            length = int.from_bytes(content[header : header + digits], "big")
            header += digits
        position = header + length
        if position > len(content):
            raise LDAPProtocolError("found an element that is cut off")
        yield tag, content[header:position]


def _expect(elements: Iterator[tuple[int, bytes]], accepted_tag: int) -> bytes:
    tag, content = next(elements, (0, b""))
    if tag != accepted_tag:
        raise LDAPProtocolError(f"found an element with the tag {tag:#04x}; {accepted_tag:#04x} is accepted")
    return content


@dataclass(frozen=True, slots=True)
class Response:
    """A message of the server: the tag of its operation, and the content."""

    message_id: int
    tag: int
    content: bytes


def parse_response(received: bytes) -> Response:
    """Return a complete message. Raises LDAPProtocolError."""
    fields = _elements(_expect(_elements(received), _SEQUENCE))
    message_id = int.from_bytes(_expect(fields, _INTEGER), "big")
    tag, content = next(fields, (0, b""))
    return Response(message_id, tag, content)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an operation."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"result {self.code} {self.text!r:.200}"


def parse_result(content: bytes) -> Result:
    """Return the result in a response. Raises LDAPProtocolError."""
    fields = _elements(content)
    code = int.from_bytes(_expect(fields, _ENUMERATED), "big")
    _expect(fields, _OCTET_STRING)
    return Result(code, _expect(fields, _OCTET_STRING).decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that a search found. Names of attributes are in lower case."""

    dn: bytes
    attributes: Mapping[str, tuple[bytes, ...]]


def parse_entry(content: bytes) -> Entry:
    """Return the entry in a response. Raises LDAPProtocolError."""
    fields = _elements(content)
    dn = _expect(fields, _OCTET_STRING)
    attributes = {}
    for tag, attribute in _elements(_expect(fields, _SEQUENCE)):
        if tag != _SEQUENCE:
            raise LDAPProtocolError(f"found an attribute with the tag {tag:#04x}")
        parts = _elements(attribute)
        name = _expect(parts, _OCTET_STRING).decode(errors="replace").lower()
        attributes[name] = tuple(value for _, value in _elements(_expect(parts, 0x31)))
    return Entry(dn, attributes)


# Filters

_AND, _OR, _NOT, _EQUAL, _SUBSTRINGS, _PRESENT, _EXTENSIBLE = 0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0x87, 0xA9
_COMPARISONS = {">=": 0xA5, "<=": 0xA6, "~=": 0xA8, "=": _EQUAL}
_ITEM = re.compile(r"([A-Za-z0-9.;:-]*?)(>=|<=|~=|:=|=)([^()\x00]*)", re.DOTALL)
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2})?")


def and_filter(*filters: bytes) -> bytes:
    """Return the filter that matches what all filters match."""
    return encode(_AND, *filters)


def equality_filter(attribute: str, value: bytes) -> bytes:
    """Return the filter `attribute=value`. The value is sent as it is, so no character of it has a meaning."""
    return encode(_EQUAL, _string(attribute.encode()), _string(value))


def parse_filter(text: str) -> bytes:
    """Return a filter from its text. Raises ValueError."""
    encoded, end = _parse_filter(text, 0, 0)
    if end != len(text):
        raise ValueError(f"found {text[end:]!r:.80} after the filter")
    return encoded


def _parse_filter(text: str, start: int, depth: int) -> tuple[bytes, int]:
    """Return the filter that begins at a position, and the position after it."""
    if depth > MAX_FILTER_DEPTH:
        raise ValueError(f"filters are nested more than {MAX_FILTER_DEPTH} deep")
    if text[start : start + 1] != "(":
        raise ValueError(f"found {text[start:]!r:.80}; a filter in parentheses is accepted, such as (objectClass=*)")
    operator, position = text[start + 1 : start + 2], start + 2
    if operator in ("&", "|", "!"):
        inner = []
        while text[position : position + 1] == "(":
            encoded, position = _parse_filter(text, position, depth + 1)
            inner.append(encoded)
        if operator == "!" and len(inner) != 1:
            raise ValueError(f"found {len(inner)} filters after '!'; one is accepted")
        result = encode({"&": _AND, "|": _OR, "!": _NOT}[operator], *inner)
    else:
        match = _ITEM.match(text, start + 1)
        if match is None:
            raise ValueError(f"found {text[start:]!r:.80}; a comparison is accepted, such as (objectClass=person)")
        result, position = _item(*match.groups()), match.end()
    if text[position : position + 1] != ")":
        raise ValueError(f"found {text[position:]!r:.80}; ')' is accepted")
    return result, position + 1


def _item(attribute: str, operator: str, value: str) -> bytes:
    if operator == ":=":
        return _extensible(attribute, value)
    if not is_attribute(attribute):
        raise ValueError(f"found the attribute {attribute!r:.80}; letters, digits and '-' are accepted")
    name = _string(attribute.encode())
    if operator != "=" or "*" not in value:
        return encode(_COMPARISONS[operator], name, _string(_unescape(value)))
    if value == "*":
        return _string(attribute.encode(), _PRESENT)
    first, *middle, last = value.split("*")
    parts = [(0x80, first), *((0x81, part) for part in middle), (0x82, last)]
    return encode(_SUBSTRINGS, name, encode(_SEQUENCE, *(_string(_unescape(part), tag) for tag, part in parts if part)))


def _extensible(description: str, value: str) -> bytes:
    """Return `attribute:dn:rule:=value`. Attribute, `dn` and rule are optional; one of attribute and rule is needed."""
    attribute, *options = description.split(":")
    is_dn = bool(options) and options[0].lower() == "dn"
    rules = options[1:] if is_dn else options
    rule = rules[0] if rules else ""
    if len(rules) > 1 or not (attribute or rule) or not all(is_attribute(name) for name in (attribute, rule) if name):
        raise ValueError(f"found {description!r:.80} before ':='; attribute:dn:rule is accepted")
    fields = [_string(rule.encode(), 0x81)] if rule else []
    fields += [_string(attribute.encode(), 0x82)] if attribute else []
    fields += [_string(_unescape(value), 0x83)]
    fields += [_string(b"\xff", 0x84)] if is_dn else []
    return encode(_EXTENSIBLE, *fields)


def _unescape(value: str) -> bytes:
    def replace(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise ValueError(f"found a backslash in {value!r:.80}; two hexadecimal digits are accepted after it")
        return bytes.fromhex(match[1].decode())

    return _ESCAPED.sub(replace, value.encode())


def is_attribute(name: str) -> bool:
    """Return whether a text is the name of an attribute."""
    return _ATTRIBUTE.fullmatch(name) is not None


# URLs

SCOPES = {"base": 0, "one": 1, "sub": 2}


@dataclass(frozen=True, slots=True)
class LDAPURL:
    """A server, and where to search in it. `attribute` is compared with the user name, `filter` is encoded."""

    is_ldaps: bool
    host: str
    port: int
    base: bytes
    attribute: str
    scope: int
    filter: bytes


def parse_url(text: str) -> LDAPURL:
    """Return the URL in `ldap(s)://host:port/base?attribute?scope?filter`. Raises ValueError.

    Without a host it is localhost, without an attribute uid, without a scope sub, without a filter (objectClass=*).
    """
    if not text.isascii() or not text.isprintable():
        raise ValueError("other characters than those of ASCII are accepted percent-encoded")
    url = urlsplit(text)
    if url.scheme not in {"ldap", "ldaps"}:
        raise ValueError("a URL that begins with ldap:// or ldaps:// is accepted")
    if url.username is not None or url.password is not None or url.fragment:
        raise ValueError("neither credentials nor a fragment are accepted; bindDN and bindPassword are for credentials")
    parts = url.query.split("?")
    if len(parts) > 3:
        raise ValueError("BASE?ATTRIBUTE?SCOPE?FILTER is accepted after the host, without extensions")
    attribute, scope, filter_text = (unquote_to_bytes(part).decode() for part in (*parts, "", "")[:3])
    if attribute and not is_attribute(attribute):
        raise ValueError(f"found the attribute {attribute!r}; one attribute is accepted, such as uid")
    if scope and scope not in SCOPES:
        raise ValueError(f"found the scope {scope!r}; {', '.join(SCOPES)} are accepted")
    base = unquote_to_bytes(url.path.removeprefix("/"))
    base.decode()
    return LDAPURL(
        is_ldaps=url.scheme == "ldaps",
        host=url.hostname or "localhost",
        port=url.port or (636 if url.scheme == "ldaps" else 389),
        base=base,
        attribute=attribute or "uid",
        scope=SCOPES[scope or "sub"],
        filter=parse_filter(filter_text or "(objectClass=*)"),
    )
