"""Compiles and evaluates expressions with cel-cpp. Only the worker imports this module: the library takes 11 MB.

A value goes in as JSON, converted by its type: null fields are left out, names are escaped, and times are messages of
protobuf. A result comes out as a scalar, or as JSON for a variable.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from api.codec.limits import MAX_DEPTH
from api.meta.times import format_time, parse_time
from master.cel import messages
from master.cel.library import FUNCTIONS, MARK, Function
from master.cel.messages import AuthorizationCheck, CELType
from master.cel.patch_types import JSON_PATCH, PATCH_TEXTS, PATCH_VALUE
from master.cel.rules import escape

TYPES = {
    messages.DYN: cel.Type.DYN,
    messages.BOOL: cel.Type.BOOL,
    messages.INT: cel.Type.INT,
    messages.DOUBLE: cel.Type.DOUBLE,
    messages.STRING: cel.Type.STRING,
    messages.BYTES: cel.Type.BYTES,
    messages.LIST: cel.Type.LIST,
    messages.MAP: cel.Type.MAP,
}
MAX_COMPILED, MAX_COMPILED_CHARACTERS = 4096, 2 << 20
"""Compiled expressions that are kept, and their characters together."""


class EvaluationError(Exception):
    """An expression that has no value. `is_too_expensive` is whether it exceeded the steps of loops."""

    def __init__(self, message: str, *, is_too_expensive: bool = False) -> None:
        super().__init__(message)
        self.is_too_expensive = is_too_expensive


class CompilationError(Exception):
    """An expression that does not compile. The message is that of the compiler."""


# --- functions --------------------------------------------------------------------------------------------------------


class PendingChecks:
    """The checks of the authorizer that the expressions of one question ask for, with the answers that there are."""

    def __init__(self) -> None:
        self.answers: Mapping[AuthorizationCheck, messages.CheckAnswer] = {}
        self.missing: dict[AuthorizationCheck, None] = {}

    def check(self, value: Any, verb: str) -> dict[str, Any]:
        """Return the decision about a check. Raises ValueError if there is no answer yet."""
        if not isinstance(value, dict) or value.get(MARK) != "authorizer":
            raise ValueError("no such overload")
        account = value.get("account")
        asked = AuthorizationCheck(
            verb,
            value.get("path", ""),
            value.get("group", ""),
            value.get("resource", ""),
            value.get("subresource", ""),
            value.get("namespace", ""),
            value.get("name", ""),
            (account[0], account[1]) if account else None,
        )
        answer = self.answers.get(asked)
        if answer is None:
            self.missing[asked] = None
            raise ValueError("the authorizer has not answered yet")
        return {MARK: "decision", "allowed": answer.allowed, "reason": answer.reason}


def _extension(checks: PendingChecks) -> cel.CelExtension:
    overloads: dict[str, list[cel.Overload]] = {}
    check = Function("check", (messages.MAP, messages.STRING), messages.MAP, checks.check, is_member=True)
    for function in (*FUNCTIONS, check):
        overloads.setdefault(function.name, []).append(
            cel.Overload(
                f"{function.name}_{'_'.join(function.parameters)}_{'member' if function.is_member else 'global'}",
                TYPES[function.result],
                [TYPES[parameter] for parameter in function.parameters],
                is_member=function.is_member,
                impl=function.call,
            )
        )
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, each) for name, each in overloads.items()])


# --- types ------------------------------------------------------------------------------------------------------------

_WELL_KNOWN = (struct_pb2, timestamp_pb2, duration_pb2, wrappers_pb2)
_PACKAGE = "object"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALAR_FIELDS = {
    messages.BOOL: _Field.TYPE_BOOL,
    messages.INT: _Field.TYPE_INT64,
    messages.DOUBLE: _Field.TYPE_DOUBLE,
    messages.STRING: _Field.TYPE_STRING,
    messages.BYTES: _Field.TYPE_BYTES,
}
_MESSAGE_FIELDS = {
    messages.TIMESTAMP: ".google.protobuf.Timestamp",
    messages.DATE: ".google.protobuf.Timestamp",
    messages.DURATION: ".google.protobuf.Duration",
}


class DeclaredTypes:
    """The message types by which the compiler knows the properties of objects. No value ever has one of them."""

    def __init__(self) -> None:
        self._file = descriptor_pb2.FileDescriptorProto(name="object.proto", package=_PACKAGE, syntax="proto3")
        self._file.dependency.extend(module.DESCRIPTOR.name for module in _WELL_KNOWN)
        self._more: list[descriptor_pb2.FileDescriptorProto] = []

    def declare(self, declared: CELType) -> Callable[[], cel.Type]:
        """Add the messages of a type, and return a function that returns the type, once `pool` is made."""
        if declared.kind == messages.OBJECT:
            name = self._message(declared)
            return lambda: cel.Type(name)
        if declared.kind in (messages.LIST, messages.MAP):
            inner = self.declare(declared.items or messages.ANYTHING)
            if declared.kind == messages.LIST:
                return lambda: cel.Type.List(inner())
            return lambda: cel.Type.Map(cel.Type.STRING, inner())
        if declared.kind in (messages.TIMESTAMP, messages.DATE):
            return lambda: cel.Type.TIMESTAMP
        if declared.kind == messages.DURATION:
            return lambda: cel.Type.DURATION
        return lambda: TYPES[declared.kind]

    def declare_patch_types(self, names: Iterable[str], fields: Iterable[str]) -> None:
        """Add the messages of a mutation: each with the same fields of any type, besides those of a JSONPatch."""
        file = descriptor_pb2.FileDescriptorProto(name="patch.proto", syntax="proto3")
        file.dependency.append(struct_pb2.DESCRIPTOR.name)
        for name in names:
            message = file.message_type.add(name=name)
            texts = PATCH_TEXTS if name == JSON_PATCH else ()
            members = (*PATCH_TEXTS, PATCH_VALUE) if name == JSON_PATCH else fields
            for number, field_name in enumerate(members, 1):
                field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
                field.json_name = f"f{number}"
                self._set_type(field, messages.CELType(messages.STRING) if field_name in texts else messages.ANYTHING)
        self._more.append(file)

    def pool(self) -> descriptor_pool.DescriptorPool:
        """Return the pool with all messages that were declared."""
        pool = descriptor_pool.DescriptorPool()
        for module in _WELL_KNOWN:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        for file in (self._file, *self._more):
            pool.AddSerializedFile(file.SerializeToString())
        return pool

    def _message(self, declared: CELType) -> str:
        name = f"T{len(self._file.message_type)}"
        message = self._file.message_type.add(name=name)
        for number, (field_name, field_type) in enumerate(declared.fields, 1):
            escaped = escape(field_name)
            if escaped is not None:
                self._add_field(message, escaped, number, field_type)
        return f"{_PACKAGE}.{name}"

    def _add_field(self, message: Any, name: str, number: int, declared: CELType) -> None:
        field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
        field.json_name = f"f{number}"
        if declared.kind == messages.LIST:
            element = declared.items or messages.ANYTHING
            if element.kind in (messages.LIST, messages.MAP):
                # Protobuf has no list of lists: its elements are of any type.
                element = messages.ANYTHING
            self._set_type(field, element)
            field.label = _Field.LABEL_REPEATED
        elif declared.kind == messages.MAP:
            self._set_map(message, field, declared)
        else:
            self._set_type(field, declared)

    def _set_map(self, message: Any, field: Any, declared: CELType) -> None:
        # The name of an entry follows from that of the field; two that differ in underscores only have the same.
        entry_name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        if any(each.name == entry_name for each in message.nested_type):
            self._set_type(field, messages.ANYTHING)
            return
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
        element = declared.items or messages.ANYTHING
        self._set_type(value, messages.ANYTHING if element.kind in (messages.LIST, messages.MAP) else element)
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry_name}"

    def _set_type(self, field: Any, declared: CELType) -> None:
        if declared.kind in _SCALAR_FIELDS:
            field.type = _SCALAR_FIELDS[declared.kind]
            return
        field.type = _Field.TYPE_MESSAGE
        if declared.kind == messages.OBJECT:
            field.type_name = f".{self._message(declared)}"
        else:
            field.type_name = _MESSAGE_FIELDS.get(declared.kind, ".google.protobuf.Value")


# --- values -----------------------------------------------------------------------------------------------------------


def to_cel(value: Any, declared: CELType) -> Any:
    """Return a JSON value as the library takes it. A value that has not its type stays as it is."""
    if isinstance(value, dict):
        return _map_to_cel(value, declared)
    if isinstance(value, list):
        items = declared.items or messages.ANYTHING
        return [to_cel(each, items) for each in value]
    if declared.kind == messages.DOUBLE and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and declared.kind not in (messages.STRING, messages.DYN):
        return _text_to_cel(value, declared.kind)
    return value


def _map_to_cel(value: dict[str, Any], declared: CELType) -> dict[str, Any]:
    if declared.kind == messages.OBJECT:
        converted = {}
        for name, field_type in declared.fields:
            member, escaped = value.get(name), escape(name)
            if member is not None and escaped is not None:
                converted[escaped] = to_cel(member, field_type)
        return converted
    items = declared.items or messages.ANYTHING
    return {key: to_cel(member, items) for key, member in value.items()}


def _text_to_cel(text: str, kind: str) -> Any:
    try:
        if kind == messages.BYTES:
            return base64.b64decode(text, validate=True)
        if kind == messages.DATE:
            return _timestamp(
                datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time(), datetime.UTC)
            )
        if kind == messages.TIMESTAMP:
            return _timestamp(parse_time(text))
        if kind == messages.DURATION:
            return _duration(text)
    except (ValueError, OverflowError):
        return text
    return text


def _timestamp(time: datetime.datetime) -> timestamp_pb2.Timestamp:
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(time)
    return message


_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> duration_pb2.Duration:
    sign, rest, position, seconds = (-1 if text.startswith("-") else 1), text.lstrip("+-"), 0, 0.0
    while position < len(rest):
        match = _DURATION.match(rest, position)
        if match is None:
            raise ValueError(text)
        seconds += float(match[1]) * _SECONDS[match[2]]
        position = match.end()
    message = duration_pb2.Duration()
    message.FromTimedelta(datetime.timedelta(seconds=sign * seconds))
    return message


def from_cel(value: Any, depth: int = 32) -> Any:
    """Return a result as a value that can go in again. Raises EvaluationError for an optional, which cannot.

    The library itself crashes when it converts a map with an optional.
    """
    kind = value.type()
    if depth == 0:
        raise EvaluationError("the value is nested too deeply")
    if kind == cel.Type.LIST:
        return [from_cel(each, depth - 1) for each in value.value()]
    if kind == cel.Type.MAP:
        return {key: from_cel(member, depth - 1) for key, member in value.value().items()}
    if kind not in _PLAIN:
        raise EvaluationError(f"a value of type {kind.name()} is not accepted here")
    plain = value.value()
    if isinstance(plain, datetime.datetime):
        return _timestamp(plain)
    if isinstance(plain, datetime.timedelta):
        message = duration_pb2.Duration()
        message.FromTimedelta(plain)
        return message
    return plain


_PLAIN = (
    cel.Type.BOOL,
    cel.Type.BYTES,
    cel.Type.DOUBLE,
    cel.Type.DURATION,
    cel.Type.INT,
    cel.Type.NULL,
    cel.Type.STRING,
    cel.Type.TIMESTAMP,
    cel.Type.UINT,
)


def to_document(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a result as JSON. Raises EvaluationError for what JSON has no form of."""
    kind = value.type()
    if depth == 0:
        raise EvaluationError("the value is nested too deeply")
    if kind == cel.Type.LIST:
        return [to_document(each, depth - 1) for each in value.value()]
    if kind == cel.Type.MAP:
        members = value.value()
        if other := [key for key in members if not isinstance(key, str)]:
            raise EvaluationError(f'map key "{other[0]}" is not a string')
        return {key: to_document(member, depth - 1) for key, member in members.items()}
    if kind not in _PLAIN:
        raise EvaluationError(f"a value of type {kind.name()} is not accepted here")
    plain = value.value()
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    if isinstance(plain, datetime.datetime):
        return format_time(plain if plain.tzinfo else plain.replace(tzinfo=datetime.UTC))
    if isinstance(plain, datetime.timedelta):
        return f"{plain.total_seconds():.9f}".rstrip("0").rstrip(".") + "s"
    if isinstance(plain, float) and not math.isfinite(plain):
        raise EvaluationError(f"the number {plain} is not accepted here")
    return plain


# --- compiling and evaluating -----------------------------------------------------------------------------------------


class Environment:
    """Compiles expressions over variables of any type, and evaluates them. It keeps what it has compiled."""

    def __init__(self, variables: tuple[str, ...]) -> None:
        self.checks = PendingChecks()
        self._extensions = [
            ext_strings.ExtStrings(),
            ext_optional.ExtOptional(),
            ext_bindings.ExtBindings(),
            ext_math.ExtMath(),
            ext_encoders.ExtEncoders(),
            _extension(self.checks),
        ]
        self._env = cel.NewEnv(variables=dict.fromkeys(variables, cel.Type.DYN), extensions=self._extensions)
        self._compiled: OrderedDict[str, cel.Expression] = OrderedDict()
        self._characters = 0

    def typed(self, declared: DeclaredTypes, variables: Mapping[str, Callable[[], cel.Type]]) -> cel.Env:
        """Return an environment that only compiles, because its variables have declared types."""
        pool = declared.pool()
        types = {name: make() for name, make in variables.items()}
        return cel.NewEnv(pool, variables=types, extensions=self._extensions)

    def compile(self, text: str) -> cel.Expression:
        """Return a compiled expression. Raises CompilationError."""
        expression = self._compiled.get(text)
        if expression is not None:
            self._compiled.move_to_end(text)
            return expression
        expression = compile_in(self._env, text)
        self._compiled[text] = expression
        self._characters += len(text)
        while len(self._compiled) > MAX_COMPILED or self._characters > MAX_COMPILED_CHARACTERS:
            dropped, _ = self._compiled.popitem(last=False)
            self._characters -= len(dropped)
        return expression

    def activation(self, values: Mapping[str, Any]) -> cel.Activation:
        """Return variables with values. They are converted once, and for all expressions that use them."""
        return self._env.Activation(dict(values))

    def evaluate(self, text: str, activation: cel.Activation) -> cel.Value:
        """Return the value of an expression. Raises EvaluationError, also for one that does not compile."""
        try:
            value = self.compile(text).eval(activation)
        except CompilationError as error:
            raise EvaluationError(f"compilation failed: {error}") from None
        except RuntimeError as error:
            message = str(error)
            if "budget exceeded" in message:
                raise EvaluationError(
                    "operation cancelled: actual cost limit exceeded", is_too_expensive=True
                ) from None
            raise EvaluationError(_plain_message(message)) from None
        if value.type() == cel.Type.ERROR:
            raise EvaluationError(_plain_message(str(value.value())))
        return value


def compile_in(env: cel.Env, text: str) -> cel.Expression:
    """Return an expression compiled in an environment. Raises CompilationError."""
    try:
        return env.compile(text)
    except (RuntimeError, ValueError, TypeError) as error:
        raise CompilationError(_compiler_message(str(error))) from None


_CODE = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_STRUCT = re.compile(r" not found in struct '[\w.]*'")
_MISSING_KEY = re.compile(r'^Key not found in map : "(.*)"$', re.DOTALL)


def _compiler_message(text: str) -> str:
    return _STRUCT.sub("", _CODE.sub("", text))[:2048]


def _plain_message(text: str) -> str:
    message = _CODE.sub("", text)
    missing = _MISSING_KEY.match(message)
    if missing is not None:
        return f"no such key: {missing[1]}"[:1024]
    if message.startswith("No matching overloads found"):
        return f"no such overload{message.removeprefix('No matching overloads found').replace(' : ', ': ')}"[:1024]
    return message[:1024]
