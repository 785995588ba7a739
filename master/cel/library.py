"""Kubernetes' function libraries for CEL, as far as the compiler does not have them: a table of Python functions. Pure.

A quantity, URL, IP address, network, format or authorizer is a map in expressions, whose key MARK names its kind. Each
function raises `ValueError` with the text of the runtime error. The worker alone calls them.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import urllib.parse
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from api.meta import names, quantity

MARK = "__kind__"

MAX_FUNCTION_ITEMS = 10_000
"""Elements of a list that a function compares with one another. Loops of expressions have as many steps."""


class Function(NamedTuple):
    """An overload of a function. Types are names of `master.cel.messages`; `quantity` and its like are `map`.

    The first type of a member function is that of its receiver.
    """

    name: str
    parameters: tuple[str, ...]
    result: str
    call: Callable[..., Any]
    is_member: bool = False


def _marked(kind: str, **fields: Any) -> dict[str, Any]:
    return {MARK: kind, **fields}


def _require(value: Any, kind: str) -> Any:
    if not isinstance(value, dict) or value.get(MARK) != kind:
        raise ValueError("no such overload")
    return value


def _is(make: Callable[..., Any]) -> Callable[..., bool]:
    """Return a function that says whether `make` accepts its arguments."""

    def accepts(*arguments: Any) -> bool:
        try:
            make(*arguments)
        except ValueError:
            return False
        return True

    return accepts


# --- ip and cidr ------------------------------------------------------------------------------------------------------


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if "%" in text:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string: has a zone")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def _ip(text: str) -> dict[str, Any]:
    return _marked("ip", ip=str(_address(text)))


def _ip_of(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(_require(value, "ip")["ip"])


def _ip_is_canonical(text: str) -> bool:
    return str(_address(text)) == text


def _network(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    address, slash, length = text.partition("/")
    if not slash or not length.isascii() or not length.isdecimal() or (length != "0" and length.startswith("0")):
        raise ValueError(f"network address parse error during conversion from string: {text!r}")
    _address(address)
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(f"network address parse error during conversion from string: {text!r}") from None


def _cidr(text: str) -> dict[str, Any]:
    return _marked("cidr", cidr=str(_network(text)))


def _cidr_of(value: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(_require(value, "cidr")["cidr"])


def _contains_ip(value: Any, other: Any) -> bool:
    address = _address(other) if isinstance(other, str) else _ip_of(other)
    network = _cidr_of(value).network
    return address.version == network.version and address in network


def _contains_cidr(value: Any, other: Any) -> bool:
    inner = _network(other) if isinstance(other, str) else _cidr_of(other)
    outer = _cidr_of(value).network
    if isinstance(outer, ipaddress.IPv4Network) and isinstance(inner.network, ipaddress.IPv4Network):
        return inner.network.subnet_of(outer)
    if isinstance(outer, ipaddress.IPv6Network) and isinstance(inner.network, ipaddress.IPv6Network):
        return inner.network.subnet_of(outer)
    return False


def _masked(value: Any) -> dict[str, Any]:
    return _marked("cidr", cidr=str(_cidr_of(value).network))


# --- quantity ---------------------------------------------------------------------------------------------------------


def _quantity(text: str) -> dict[str, Any]:
    try:
        return _of_amount(quantity.parse(text))
    except quantity.BadQuantity as error:
        raise ValueError(str(error)) from None


def _of_amount(amount: Any) -> dict[str, Any]:
    value = Fraction(amount)
    if value.numerator.bit_length() > 256 or value.denominator.bit_length() > 256:
        raise ValueError("the quantity has too many digits")
    return _marked("quantity", n=str(value.numerator), d=str(value.denominator))


def _amount(value: Any) -> Fraction:
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    fields = _require(value, "quantity")
    return Fraction(int(fields["n"]), int(fields["d"]))


def _sign(value: Any) -> int:
    return _compare(value, 0)


def _compare(value: Any, other: Any) -> int:
    difference = _amount(value) - _amount(other)
    return (difference > 0) - (difference < 0)


def _is_integer(value: Any) -> bool:
    amount = _amount(value)
    return amount.denominator == 1 and -(2**63) <= amount.numerator < 2**63


def _as_integer(value: Any) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return _amount(value).numerator


# --- url --------------------------------------------------------------------------------------------------------------


def _url(text: str) -> dict[str, Any]:
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"URL parse error during conversion from string: {text[:100]!r}") from None
    has_spaces = any(character <= " " or character == "\x7f" for character in text)
    if has_spaces or not (parts.scheme or text.startswith("/")):
        raise ValueError(f"URL parse error during conversion from string: {text[:100]!r}: invalid URI for request")
    hostname = parts.hostname or ""
    return _marked(
        "url",
        text=text,
        scheme=parts.scheme,
        host=parts.netloc.rpartition("@")[2],
        hostname=hostname,
        port="" if port is None else str(port),
        path=urllib.parse.quote(urllib.parse.unquote(parts.path), safe="/:@!$&'()*+,;=~-._"),
    )


def _url_part(name: str) -> Callable[[Any], str]:
    def part(value: Any) -> str:
        return str(_require(value, "url")[name])

    return part


def _url_query(value: Any) -> dict[str, list[str]]:
    query = urllib.parse.urlsplit(_require(value, "url")["text"]).query
    return urllib.parse.parse_qs(query, keep_blank_values=True, max_num_fields=MAX_FUNCTION_ITEMS)


# --- format -----------------------------------------------------------------------------------------------------------

_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_BYTE = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})?")
_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_DATETIME = re.compile(rf"{_DATE.pattern}[Tt ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](?:\.[0-9]+)?(?:[Zz]|[+-][0-9:]+)")


def _prefix(check: Callable[[str], str]) -> Callable[[str], str]:
    def error(text: str) -> str:
        return check(text[:-1] + "a" if text.endswith("-") else text)

    return error


def _pattern(pattern: re.Pattern[str], message: str) -> Callable[[str], str]:
    return lambda text: "" if pattern.fullmatch(text) else message


def _uri_error(text: str) -> str:
    return "" if _is(_url)(text) else "invalid URI for request"


FORMATS: dict[str, Callable[[str], str]] = {
    "dns1123Label": names.dns_label_error,
    "dns1123Subdomain": names.dns_subdomain_error,
    "dns1035Label": names.dns_1035_label_error,
    "qualifiedName": names.label_key_error,
    "labelValue": names.label_value_error,
    "dns1123LabelPrefix": _prefix(names.dns_label_error),
    "dns1123SubdomainPrefix": _prefix(names.dns_subdomain_error),
    "dns1035LabelPrefix": _prefix(names.dns_1035_label_error),
    "uri": _uri_error,
    "uuid": _pattern(_UUID, "does not match the UUID format"),
    "byte": _pattern(_BYTE, "invalid base64"),
    "date": _pattern(_DATE, "invalid date"),
    "datetime": _pattern(_DATETIME, "invalid datetime"),
}
"""Named formats, each with the function that returns what is wrong with a text."""


def _format(name: str) -> Callable[[], dict[str, Any]]:
    return lambda: _marked("format", name=name)


def _validate(value: Any, text: str) -> dict[str, Any]:
    """Return what is wrong with a text. It has the functions of an optional list, without a value if nothing is."""
    problem = FORMATS[_require(value, "format")["name"]](text)
    return _marked("errors", errors=[problem] if problem else [])


def _error_values(value: Any) -> list[str]:
    errors: list[str] = _require(value, "errors")["errors"]
    if not errors:
        raise ValueError("optional.none() dereference")
    return errors


def _error_values_or(value: Any, other: list[Any]) -> list[Any]:
    return _require(value, "errors")["errors"] or other


# --- sets and lists ---------------------------------------------------------------------------------------------------


def _bounded(*lists: Sequence[Any]) -> None:
    number = 1
    for items in lists:
        number *= max(len(items), 1)
    if number > MAX_FUNCTION_ITEMS * 100:
        raise ValueError("call cost exceeds limit")


def _set_contains(items: list[Any], others: list[Any]) -> bool:
    _bounded(items, others)
    return all(other in items for other in others)


def _set_equivalent(items: list[Any], others: list[Any]) -> bool:
    return _set_contains(items, others) and _set_contains(others, items)


def _set_intersects(items: list[Any], others: list[Any]) -> bool:
    _bounded(items, others)
    return any(other in items for other in others)


def _is_sorted(items: list[Any]) -> bool:
    try:
        return all(earlier <= later for earlier, later in itertools.pairwise(items))
    except TypeError:
        raise ValueError("no such overload") from None


def _sum(items: list[Any]) -> Any:
    try:
        return sum(items)
    except TypeError:
        raise ValueError("no such overload") from None


def _least(items: list[Any]) -> Any:
    if not items:
        raise ValueError("min called on empty list")
    return _extreme(min, items)


def _greatest(items: list[Any]) -> Any:
    if not items:
        raise ValueError("max called on empty list")
    return _extreme(max, items)


def _extreme(choose: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return choose(items)
    except TypeError:
        raise ValueError("no such overload") from None


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        raise ValueError("no such overload") from None


def _index_of(items: list[Any], value: Any) -> int:
    return next((index for index, item in enumerate(items) if item == value), -1)


def _last_index_of(items: list[Any], value: Any) -> int:
    return next((index for index in range(len(items) - 1, -1, -1) if items[index] == value), -1)


def _distinct(items: list[Any]) -> list[Any]:
    _bounded(items, items)
    different: list[Any] = []
    for item in items:
        if item not in different:
            different.append(item)
    return different


def _flatten(items: list[Any]) -> list[Any]:
    return [inner for item in items for inner in (item if isinstance(item, list) else [item])]


def _range(number: int) -> list[int]:
    if not 0 <= number <= MAX_FUNCTION_ITEMS:
        raise ValueError(f"range of {number} elements: at most {MAX_FUNCTION_ITEMS} are accepted")
    return list(range(number))


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(items):
        raise ValueError(f"cannot slice({start}, {end}) a list of {len(items)} elements")
    return items[start:end]


def _reversed(items: list[Any]) -> list[Any]:
    return items[::-1]


# --- authorizer -------------------------------------------------------------------------------------------------------


def _authorizer_with(value: Any, **fields: Any) -> dict[str, Any]:
    return {**_require(value, "authorizer"), **fields}


_AUTHORIZER_FIELDS = ("group", "resource", "subresource", "namespace", "name", "path")
"""What a member function of the same name sets of a question to the authorizer."""


def _with_field(field: str) -> Callable[[Any, str], dict[str, Any]]:
    return lambda value, text: _authorizer_with(value, **{field: text})


def _service_account(value: Any, namespace: str, name: str) -> dict[str, Any]:
    return _authorizer_with(value, account=[namespace, name])


# --- the table --------------------------------------------------------------------------------------------------------

_LIST_MEMBERS: tuple[tuple[str, tuple[str, ...], str, Callable[..., Any]], ...] = (
    ("isSorted", (), "bool", _is_sorted),
    ("sum", (), "dyn", _sum),
    ("min", (), "dyn", _least),
    ("max", (), "dyn", _greatest),
    ("indexOf", ("dyn",), "int", _index_of),
    ("lastIndexOf", ("dyn",), "int", _last_index_of),
    ("distinct", (), "list", _distinct),
    ("flatten", (), "list", _flatten),
    ("reverse", (), "list", _reversed),
    ("slice", ("int", "int"), "list", _slice),
    ("sort", (), "list", _sorted),
)

_NUMBER_OR_QUANTITY = ("map", "int")

FUNCTIONS: tuple[Function, ...] = (
    Function("jsonpatch.escapeKey", ("string",), "string", lambda key: key.replace("~", "~0").replace("/", "~1")),
    Function("isIP", ("string",), "bool", _is(_ip)),
    Function("ip", ("string",), "map", _ip),
    Function("ip.isCanonical", ("string",), "bool", _ip_is_canonical),
    Function("family", ("map",), "int", lambda value: _ip_of(value).version, is_member=True),
    Function("isUnspecified", ("map",), "bool", lambda value: _ip_of(value).is_unspecified, is_member=True),
    Function("isLoopback", ("map",), "bool", lambda value: _ip_of(value).is_loopback, is_member=True),
    Function(
        "isLinkLocalMulticast",
        ("map",),
        "bool",
        lambda value: any(
            _ip_of(value).version == network.version and _ip_of(value) in network
            for network in (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))
        ),
        is_member=True,
    ),
    Function("isLinkLocalUnicast", ("map",), "bool", lambda value: _ip_of(value).is_link_local, is_member=True),
    Function(
        "isGlobalUnicast",
        ("map",),
        "bool",
        lambda value: (
            not (
                _ip_of(value).is_multicast
                or _ip_of(value).is_loopback
                or _ip_of(value).is_link_local
                or _ip_of(value).is_unspecified
                or str(_ip_of(value)) == "255.255.255.255"
            )
        ),
        is_member=True,
    ),
    Function("isCIDR", ("string",), "bool", _is(_cidr)),
    Function("cidr", ("string",), "map", _cidr),
    Function("containsIP", ("map", "string"), "bool", _contains_ip, is_member=True),
    Function("containsIP", ("map", "map"), "bool", _contains_ip, is_member=True),
    Function("containsCIDR", ("map", "string"), "bool", _contains_cidr, is_member=True),
    Function("containsCIDR", ("map", "map"), "bool", _contains_cidr, is_member=True),
    Function("ip", ("map",), "map", lambda value: _ip(str(_cidr_of(value).ip)), is_member=True),
    Function("masked", ("map",), "map", _masked, is_member=True),
    Function("prefixLength", ("map",), "int", lambda value: _cidr_of(value).network.prefixlen, is_member=True),
    Function("isQuantity", ("string",), "bool", _is(_quantity)),
    Function("quantity", ("string",), "map", _quantity),
    Function("sign", ("map",), "int", _sign, is_member=True),
    Function("isInteger", ("map",), "bool", _is_integer, is_member=True),
    Function("asInteger", ("map",), "int", _as_integer, is_member=True),
    Function("asApproximateFloat", ("map",), "double", lambda value: float(_amount(value)), is_member=True),
    Function("isGreaterThan", ("map", "map"), "bool", lambda a, b: _compare(a, b) > 0, is_member=True),
    Function("isLessThan", ("map", "map"), "bool", lambda a, b: _compare(a, b) < 0, is_member=True),
    Function("compareTo", ("map", "map"), "int", _compare, is_member=True),
    *(
        Function(name, ("map", other), "map", call, is_member=True)
        for other in _NUMBER_OR_QUANTITY
        for name, call in (
            ("add", lambda a, b: _of_amount(_amount(a) + _amount(b))),
            ("sub", lambda a, b: _of_amount(_amount(a) - _amount(b))),
        )
    ),
    Function("isURL", ("string",), "bool", _is(_url)),
    Function("url", ("string",), "map", _url),
    Function("getScheme", ("map",), "string", _url_part("scheme"), is_member=True),
    Function("getHost", ("map",), "string", _url_part("host"), is_member=True),
    Function("getHostname", ("map",), "string", _url_part("hostname"), is_member=True),
    Function("getPort", ("map",), "string", _url_part("port"), is_member=True),
    Function("getEscapedPath", ("map",), "string", _url_part("path"), is_member=True),
    Function("getQuery", ("map",), "map", _url_query, is_member=True),
    *(Function(f"format.{name}", (), "map", _format(name)) for name in FORMATS),
    Function("validate", ("map", "string"), "map", _validate, is_member=True),
    Function("hasValue", ("map",), "bool", lambda value: bool(_require(value, "errors")["errors"]), is_member=True),
    Function("value", ("map",), "list", _error_values, is_member=True),
    Function("orValue", ("map", "list"), "list", _error_values_or, is_member=True),
    Function("sets.contains", ("list", "list"), "bool", _set_contains),
    Function("sets.equivalent", ("list", "list"), "bool", _set_equivalent),
    Function("sets.intersects", ("list", "list"), "bool", _set_intersects),
    Function("lists.range", ("int",), "list", _range),
    *(Function(name, ("list", *rest), result, call, is_member=True) for name, rest, result, call in _LIST_MEMBERS),
    *(Function(field, ("map", "string"), "map", _with_field(field), is_member=True) for field in _AUTHORIZER_FIELDS),
    Function("serviceAccount", ("map", "string", "string"), "map", _service_account, is_member=True),
    Function("allowed", ("map",), "bool", lambda value: bool(_require(value, "decision")["allowed"]), is_member=True),
    Function("reason", ("map",), "string", lambda value: str(_require(value, "decision")["reason"]), is_member=True),
    Function("errored", ("map",), "bool", lambda value: not _require(value, "decision"), is_member=True),
)
"""Every function but `check` of the authorizer, whose answers belong to one question."""
