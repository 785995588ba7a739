"""Compares a document of settings with the types that describe it. Pure.

Each problem is one sentence: the path, what was found, what is accepted. `Meta(extra={...})` of a type adds to it:
`accepted` says what a pattern accepts, and `secret` keeps the value out of the sentence.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

MAX_TEXT = 80
"""Characters of a value in a sentence."""

MAX_LISTED = 12
"""Names of fields in a sentence. Of more, the closest one is named."""

MAX_PROBLEMS = 100
"""Problems of a document that are reported."""

SECRET = {"secret": True}
"""Extra of a type whose values are passwords or keys."""

_PORT = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

ListenAddress = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^([0-9.]+|localhost)?:{_PORT}$",
        extra={"accepted": "ADDRESS:PORT such as 127.0.0.1:10249"},
    ),
]
"""The address and the port of a server."""

LogLevel = Literal["debug", "info", "warning", "error"]

_CREDENTIALS = re.compile(r"//.*@", re.DOTALL)

_NAMES: Sequence[tuple[type | tuple[type, ...], str]] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    (dict, "a mapping"),
    ((list, tuple), "a list"),
)


def found(value: object) -> str:
    """Return a value as in `found 'x'`. Contents of lists and mappings, and credentials in URLs, are left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)[:MAX_TEXT]
    if isinstance(value, str):
        if not value:
            return "an empty text"
        text = _CREDENTIALS.sub("//...@", value)
        return repr(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}...")
    return kind_of(value)


def kind_of(value: object) -> str:
    """Return what a value is, without the value."""
    return next((name for kinds, name in _NAMES if isinstance(value, kinds)), "nothing")


def problem(path: str, value: object, accepted: str) -> str:
    """Return the sentence for a value that is not accepted."""
    return f"{path}: found {found(value)}; {accepted}"


def unknown_field(path: str, key: str, known: Iterable[str], noun: str = "field") -> str:
    """Return the sentence for a key that no field has."""
    known = sorted(known)
    near = difflib.get_close_matches(key[:MAX_TEXT], known, n=1)
    if near:
        hint = f'did you mean "{near[0]}"?'
    elif len(known) > MAX_LISTED:
        (closest,) = difflib.get_close_matches(key[:MAX_TEXT].lower(), known, n=1, cutoff=0)
        hint = f'the closest {noun} is "{closest}"'
    else:
        hint = f"known {noun}s are {', '.join(known) or 'none'}"
    return f"{_joined(path, key[:MAX_TEXT])}: is not a {noun}; {hint}"


def mismatches(kind: Any, value: object, path: str = "", noun: str = "field") -> Iterator[str]:
    """Yield a sentence for each place where a value does not have a type. `noun` is what the keys of a struct are."""
    yield from _walk(inspect.type_info(kind), value, path, noun, {})


def address_problems(path: str, texts: Iterable[str], version: int | None = None) -> Iterator[str]:
    """Yield a sentence for each text that is no IP address, or not one of the IP version."""
    for text in texts:
        try:
            is_valid = ipaddress.ip_address(text).version == (version or ipaddress.ip_address(text).version)
        except ValueError:
            is_valid = False
        if not is_valid:
            yield problem(path, text, f"an {f'IPv{version}' if version else 'IP'} address is accepted")


def is_text(kind: Any) -> bool:
    """Return whether values of a type are texts."""
    info, _ = _unwrapped(inspect.type_info(kind), {})
    return isinstance(info, inspect.StrType) or (
        isinstance(info, inspect.LiteralType) and all(isinstance(value, str) for value in info.values)
    )


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _unwrapped(info: inspect.Type, extra: Mapping[str, Any]) -> tuple[inspect.Type, Mapping[str, Any]]:
    while isinstance(info, inspect.Metadata):
        extra, info = {**extra, **(info.extra or {})}, info.type
    return info, extra


def _walk(info: inspect.Type, value: object, path: str, noun: str, extra: Mapping[str, Any]) -> Iterator[str]:
    info, extra = _unwrapped(info, extra)
    if isinstance(info, inspect.UnionType):
        options = [option for option in info.types if _has_kind(_unwrapped(option, {})[0], value)]
        if len(options) == 1:
            problems = tuple(_walk(options[0], value, path, noun, extra))
            if problems and _is_secret(extra):
                # The keys of a mapping are not shown: a password that begins with a brace is a mapping, too.
                problems = (f"{path}: found {kind_of(value)}; {_accepted(info, extra)}",)
            yield from problems
            return
    if not _has_kind(info, value):
        shown = kind_of(value) if _is_secret(extra) or _is_container(info) else found(value)
        hint = (
            "; put it in quotes" if isinstance(info, inspect.StrType) and isinstance(value, bool | int | float) else ""
        )
        yield f"{path}: found {shown}; {_accepted(info, extra)}{hint}"
    elif isinstance(info, inspect.StructType):
        yield from _walk_struct(info, value, path, noun, extra)
    elif isinstance(info, inspect.VarTupleType) and isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _walk(info.item_type, entry, f"{path}[{index}]", noun, _secret(extra))
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        for key, entry in value.items():
            yield from _walk(info.value_type, entry, _joined(path, key), noun, _secret(extra))


def _is_secret(extra: Mapping[str, Any]) -> bool:
    return bool(extra.get("secret"))


def _secret(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the values in a list or a mapping have of its extra."""
    return SECRET if _is_secret(extra) else {}


def _walk_struct(
    info: inspect.StructType, value: object, path: str, noun: str, extra: Mapping[str, Any]
) -> Iterator[str]:
    assert isinstance(value, dict)
    fields = {field.encode_name: field for field in info.fields}
    for key in value:
        if key not in fields:
            yield unknown_field(path, str(key), fields, noun)
    for key, field in fields.items():
        if key in value:
            yield from _walk(field.type, value[key], _joined(path, key), "field", _secret(extra))
        elif field.required:
            wanted, field_extra = _unwrapped(field.type, {})
            yield f"{_joined(path, key)}: is missing; {_accepted(wanted, field_extra)}"


def _is_container(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(_is_container(_unwrapped(option, {})[0]) for option in info.types)
    return isinstance(info, inspect.StructType | inspect.VarTupleType | inspect.DictType)


def _is_number(info: inspect.IntType | inspect.FloatType, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if isinstance(info, inspect.IntType) else int | float):
        return False
    return (
        (info.ge is None or value >= info.ge)
        and (info.gt is None or value > info.gt)
        and (info.le is None or value <= info.le)
        and (info.lt is None or value < info.lt)
    )


def _is_text(info: inspect.StrType, value: object) -> bool:
    if not isinstance(value, str) or len(value) < (info.min_length or 0):
        return False
    return info.pattern is None or re.search(info.pattern, value) is not None


def _has_kind(info: inspect.Type, value: object) -> bool:
    """Return whether a value is of a type, apart from what lists and mappings contain."""
    check: Callable[[Any, object], bool] | None = _CHECKS.get(type(info))
    assert check is not None, info
    return check(info, value)


_CHECKS: Mapping[type, Callable[[Any, object], bool]] = {
    inspect.AnyType: lambda _, value: True,
    inspect.NoneType: lambda _, value: value is None,
    inspect.BoolType: lambda _, value: isinstance(value, bool),
    inspect.IntType: _is_number,
    inspect.FloatType: _is_number,
    inspect.StrType: _is_text,
    inspect.LiteralType: lambda info, value: not isinstance(value, bool) and value in info.values,
    inspect.VarTupleType: lambda _, value: isinstance(value, list | tuple),
    inspect.DictType: lambda _, value: isinstance(value, dict),
    inspect.StructType: lambda _, value: isinstance(value, dict),
    inspect.UnionType: lambda info, value: any(_has_kind(_unwrapped(option, {})[0], value) for option in info.types),
}


def _accepted(info: inspect.Type, extra: Mapping[str, Any]) -> str:
    """Return the end of a sentence: what is accepted."""
    if accepted := extra.get("accepted"):
        return f"{accepted} is accepted"
    if isinstance(info, inspect.LiteralType):
        return f"{', '.join(map(str, info.values))} {'is' if len(info.values) == 1 else 'are'} accepted"
    return f"{_noun(info)} is accepted"


def _noun(info: inspect.Type) -> str:
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _number_noun(info)
    if isinstance(info, inspect.StrType):
        return "a text that is not empty" if info.min_length else "a text"
    if isinstance(info, inspect.UnionType):
        return " or ".join(_noun(_unwrapped(option, {})[0]) for option in info.types)
    return _PLAIN_NOUNS[type(info)]


_PLAIN_NOUNS: Mapping[type, str] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.VarTupleType: "a list",
    inspect.DictType: "a mapping",
    inspect.StructType: "a mapping",
}


def _number_noun(info: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if info.ge is not None and info.le is not None:
        return f"{noun} from {info.ge} to {info.le}"
    if info.ge is not None:
        return f"{noun} of at least {info.ge:g}"
    return noun if info.gt is None else f"{noun} above {info.gt:g}"
