"""Rules of custom resources (x-kubernetes-validations): found in a schema, and laid on an object and its old one. Pure.

`find_rules` takes a schema apart. `evaluations` yields where a rule is to be evaluated, and with which old value, as
kube-apiserver correlates values: properties, values of maps, and elements of lists of type map by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from api.meta.schema import (
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    MAX_KEY_LENGTH,
    MISSING,
    NOT_SUPPORTED,
    TOO_LONG,
    FieldError,
    quoted,
)
from master.cel.bounds import estimated_cost_error, names_variable, text_error
from master.cel.messages import (
    ANYTHING,
    BOOL,
    BYTES,
    DATE,
    DOUBLE,
    DURATION,
    INT,
    LIST,
    MAP,
    OBJECT,
    STRING,
    TIMESTAMP,
    CELType,
    EvaluatedRules,
    OutOfBudget,
    Rule,
    RuleError,
    RuleFailure,
    RuleNode,
)

REASONS = {"": INVALID, "FieldValueInvalid": INVALID, "FieldValueForbidden": FORBIDDEN}
REASONS |= {"FieldValueRequired": MISSING, "FieldValueDuplicate": DUPLICATE}
"""Values of `reason`, with the reason of the cause."""

VALIDATIONS = "x-kubernetes-validations"
MAX_MESSAGE_LENGTH, MAX_MESSAGE_EXPRESSION_BYTES = 2048, 5120

_FORMATS = {"byte": BYTES, "date": DATE, "date-time": TIMESTAMP, "datetime": TIMESTAMP, "duration": DURATION}
_SCALARS = {"boolean": BOOL, "integer": INT, "number": DOUBLE, "string": STRING}
_METADATA = CELType(OBJECT, fields=(("name", CELType(STRING)), ("generateName", CELType(STRING))))
_ROOT_FIELDS = (("apiVersion", CELType(STRING)), ("kind", CELType(STRING)), ("metadata", _METADATA))

_KEYWORDS = frozenset(
    ("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import")
) | frozenset(("let", "loop", "package", "namespace", "return", "var", "void", "while"))
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED = re.compile(r"__|[./-]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def escape(name: str) -> str | None:
    """Return a property name as expressions write it; None if they cannot name the property."""
    if name in _KEYWORDS:
        return f"__{name}__"
    escaped = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], name)
    return escaped if _IDENTIFIER.fullmatch(escaped) else None


# --- finding the rules of a schema ------------------------------------------------------------------------------------


def encode_rules(schema: Mapping[str, Any]) -> bytes:
    """Return the rules of the schema of a version (openAPIV3Schema) as the worker takes them; empty if there are none.

    Their number and depth are those of the schema, which has bounds.
    """
    node = find_rules(schema)
    return b"" if node is None else msgspec.msgpack.encode(node)


def find_rules(schema: Mapping[str, Any]) -> RuleNode | None:
    """Return the rules of the schema of a version (openAPIV3Schema); None if it has none."""
    return _find(schema, "", is_root=True)


def _find(schema: Mapping[str, Any], path: str, *, is_root: bool = False) -> RuleNode | None:
    properties = []
    for name, part in _mapping(schema.get("properties")).items():
        if isinstance(part, dict) and (node := _find(part, f"{path}.properties[{name}]")) is not None:
            properties.append((name, node))
    items, values = schema.get("items"), schema.get("additionalProperties")
    node = RuleNode(
        path,
        rules=tuple(_rule(each) for each in schema.get(VALIDATIONS) or () if isinstance(each, dict)),
        properties=tuple(properties),
        items=_find(items, f"{path}.items") if isinstance(items, dict) else None,
        values=_find(values, f"{path}.additionalProperties") if isinstance(values, dict) else None,
        map_keys=_map_keys(schema),
    )
    if not (node.rules or node.properties or node.items or node.values):
        return None
    if node.rules:
        node = msgspec.structs.replace(node, type=type_of(schema, is_root=is_root) or ANYTHING)
    return node


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _map_keys(schema: Mapping[str, Any]) -> tuple[str, ...]:
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    return tuple(keys) if schema.get("x-kubernetes-list-type") == "map" else ()


def _rule(document: Mapping[str, Any]) -> Rule:
    def text(name: str) -> str:
        value = document.get(name)
        return value if isinstance(value, str) else ""

    rule = text("rule")
    return Rule(
        rule,
        text("message"),
        text("messageExpression"),
        text("reason"),
        text("fieldPath"),
        document.get("optionalOldSelf") is True,
        names_variable(rule, "oldSelf"),
    )


def type_of(schema: Mapping[str, Any], *, is_root: bool = False) -> CELType | None:
    """Return the type that a schema declares; None for a part that expressions cannot name."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") is True:
        return ANYTHING
    if kind == "string":
        return CELType(_FORMATS.get(str(schema.get("format")), STRING))
    if kind == "array":
        return CELType(LIST, _type_of_part(schema.get("items")))
    if kind == "object":
        return _type_of_object(schema, is_root=is_root)
    return CELType(_SCALARS[str(kind)]) if kind in _SCALARS else None


def _type_of_part(schema: object) -> CELType:
    return (type_of(schema) if isinstance(schema, dict) else None) or ANYTHING


def _type_of_object(schema: Mapping[str, Any], *, is_root: bool) -> CELType:
    """Return the type of a map or an object. One that keeps unknown fields has only its declared properties."""
    values = schema.get("additionalProperties")
    if values is True or isinstance(values, dict):
        return CELType(MAP, _type_of_part(values))
    fields = dict(_ROOT_FIELDS if is_root or schema.get("x-kubernetes-embedded-resource") is True else ())
    for name, part in _mapping(schema.get("properties")).items():
        declared = type_of(part) if isinstance(part, dict) else None
        if declared is not None and name not in fields and escape(name) is not None:
            fields[name] = declared
    return CELType(OBJECT, fields=tuple(fields.items()))


# --- checking the rules of a schema -----------------------------------------------------------------------------------


def rule_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Yield the errors of rules that are found without compiling them. `path` is that of the schema."""
    yield from _rule_errors(schema, path, (), correlatable=True)


def _rule_errors(
    schema: Mapping[str, Any], path: str, enclosing: tuple[Mapping[str, Any], ...], *, correlatable: bool
) -> Iterator[FieldError]:
    for index, document in enumerate(schema.get(VALIDATIONS) or ()):
        if isinstance(document, dict):
            at = f"{path}.{VALIDATIONS}[{index}]"
            yield from _one_rule_errors(document, schema, at, enclosing, correlatable=correlatable)
    inner = (*enclosing, schema)
    for name, part in _mapping(schema.get("properties")).items():
        if isinstance(part, dict):
            yield from _rule_errors(part, f"{path}.properties[{name}]", inner, correlatable=correlatable)
    if isinstance(items := schema.get("items"), dict):
        is_map = correlatable and schema.get("x-kubernetes-list-type") == "map"
        yield from _rule_errors(items, f"{path}.items", inner, correlatable=is_map)
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from _rule_errors(values, f"{path}.additionalProperties", inner, correlatable=correlatable)


def _one_rule_errors(
    document: Mapping[str, Any],
    schema: Mapping[str, Any],
    path: str,
    enclosing: tuple[Mapping[str, Any], ...],
    *,
    correlatable: bool,
) -> Iterator[FieldError]:
    rule = _rule(document)
    if not rule.rule.strip():
        yield FieldError(f"{path}.rule", "", "rule is not specified", MISSING)
        return
    unread = list(_text_errors(rule, path))
    yield from unread
    yield from _message_errors(rule, document, path)
    if rule.reason not in REASONS:
        accepted = ", ".join(f'"{reason}"' for reason in sorted(filter(None, REASONS)))
        yield FieldError(f"{path}.reason", quoted(rule.reason), f"supported values: {accepted}", NOT_SUPPORTED)
    if rule.field_path and not _is_path_of(rule.field_path, schema):
        yield FieldError(f"{path}.fieldPath", quoted(rule.field_path), "fieldPath must be a valid path")
    if rule.uses_old and not correlatable:
        detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {_uncorrelatable(path)}"
        yield FieldError(f"{path}.rule", quoted(rule.rule), detail)
    if not rule.uses_old and rule.optional_old_self:
        yield FieldError(f"{path}.optionalOldSelf", "true", "may not be set to true if oldSelf is not used in rule")
    if not unread and (detail := estimated_cost_error(rule.rule, schema, enclosing)):
        yield FieldError(f"{path}.rule", "", detail, FORBIDDEN)


def _text_errors(rule: Rule, path: str) -> Iterator[FieldError]:
    for name, text in (("rule", rule.rule), ("messageExpression", rule.message_expression)):
        if problem := text_error(text):
            yield FieldError(f"{path}.{name}", quoted(text), problem)


def _message_errors(rule: Rule, document: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    message = rule.message.strip()
    if "\n" in rule.rule.strip() and not message and not rule.message_expression:
        yield FieldError(f"{path}.message", "", "message must be specified if rule contains line breaks", MISSING)
    if rule.message and not message:
        yield FieldError(f"{path}.message", quoted(rule.message), "message must be non-empty if specified")
    if "\n" in message:
        yield FieldError(f"{path}.message", quoted(rule.message), "message must not contain line breaks")
    if len(message) > MAX_MESSAGE_LENGTH:
        yield FieldError(f"{path}.message", "", f"may not be more than {MAX_MESSAGE_LENGTH} bytes", TOO_LONG)
    if document.get("messageExpression") is not None and not rule.message_expression.strip():
        yield FieldError(f"{path}.messageExpression", "", "messageExpression must be non-empty if specified", MISSING)


def _uncorrelatable(path: str) -> str:
    """Return the path of the part that holds the innermost list above a rule."""
    return path.rpartition(".items")[0] or path


_PATH_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_\-]*)|\['((?:\\.|[^'\\])*)'\]")


def _path_steps(text: str) -> list[tuple[str, bool]] | None:
    """Return the steps of a `fieldPath`, each with whether it is in brackets; None if the text is no path."""
    steps, position = [], 0
    while position < len(text):
        match = _PATH_STEP.match(text, position)
        if match is None:
            return None
        steps.append((match[1], False) if match[1] is not None else (match[2].replace("\\'", "'"), True))
        position = match.end()
    return steps or None


def _is_path_of(text: str, schema: Mapping[str, Any]) -> bool:
    for name, _ in _path_steps(text) or (("", False),):
        properties, values = _mapping(schema.get("properties")), schema.get("additionalProperties")
        if name in properties:
            schema = _mapping(properties[name])
        elif isinstance(values, dict) and name:
            schema = values
        else:
            return False
    return True


def compile_errors(errors: tuple[RuleError, ...], path: str) -> Iterator[FieldError]:
    """Yield the errors of rules that do not compile. `path` is that of the schema."""
    for error in errors:
        at = f"{path}{error.path}.{VALIDATIONS}[{error.index}].{error.field}"
        yield FieldError(at, "", f"compilation failed: {error.error}")


# --- laying the rules on an object ------------------------------------------------------------------------------------


class Evaluation(NamedTuple):
    """A value with the rules of its part of the schema.

    `key` is the path in the documents. `old` is the old value, if `has_old`. `compared` and `compared_old` are the
    values that are equal if the value counts as unchanged: those of the list if the list is compared as a whole.
    `has_compared` is whether there is an old one.
    """

    node: RuleNode
    path: str
    value: Any
    old: Any
    has_old: bool
    compared: Any
    compared_old: Any
    has_compared: bool

    @property
    def is_unchanged(self) -> bool:
        """Return whether an update leaves the value as it was."""
        return self.has_compared and bool(self.compared == self.compared_old)


_ABSENT = object()


def evaluations(node: RuleNode, obj: Any, old: Any = None) -> Iterator[Evaluation]:
    """Yield each value of an object that has rules. `old` is None for a create."""
    before = _ABSENT if old is None else old
    yield from _evaluations(node, "", obj, before, (obj, before))


def _evaluations(node: RuleNode, path: str, value: Any, old: Any, compared: tuple[Any, Any]) -> Iterator[Evaluation]:
    if value is None:
        return
    if old is None:
        old = _ABSENT
    if node.rules:
        has_old, has_compared = old is not _ABSENT, compared[1] is not _ABSENT
        yield Evaluation(node, path, value, old, has_old, *compared, has_compared)
    if isinstance(value, dict):
        yield from _object_evaluations(node, path, value, old, compared)
    elif isinstance(value, list) and node.items is not None:
        yield from _list_evaluations(node, path, value, old, compared)


def _object_evaluations(
    node: RuleNode, path: str, value: dict[str, Any], old: Any, compared: tuple[Any, Any]
) -> Iterator[Evaluation]:
    def below(key: str) -> tuple[Any, tuple[Any, Any]]:
        before = old.get(key, _ABSENT) if isinstance(old, dict) else _ABSENT
        # Below a list that is compared as a whole, nothing has an old value of its own.
        return before, compared if isinstance(compared[0], list) and old is _ABSENT else (value[key], before)

    for name, part in node.properties:
        if name in value:
            yield from _evaluations(part, f"{path}.{name}" if path else name, value[name], *below(name))
    if node.values is not None:
        for key, member in value.items():
            yield from _evaluations(node.values, f"{path}[{key[:MAX_KEY_LENGTH]}]", member, *below(key))


def _list_evaluations(
    node: RuleNode, path: str, value: list[Any], old: Any, compared: tuple[Any, Any]
) -> Iterator[Evaluation]:
    assert node.items is not None
    if not node.map_keys:
        for index, element in enumerate(value):
            yield from _evaluations(node.items, f"{path}[{index}]", element, _ABSENT, compared)
        return
    by_keys = {_keys(element, node.map_keys): element for element in old} if isinstance(old, list) else {}
    for index, element in enumerate(value):
        before = by_keys.get(_keys(element, node.map_keys), _ABSENT)
        yield from _evaluations(node.items, f"{path}[{index}]", element, before, (element, before))


def _keys(element: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of an element of a list of type map, as text, because they are scalars of any type."""
    values = element if isinstance(element, dict) else {}
    return tuple(repr(values.get(name)) for name in names)


def applies(rule: Rule, evaluation: Evaluation) -> bool:
    """Return whether a rule is evaluated: a transition rule only if there is an old value."""
    return not rule.uses_old or rule.optional_old_self or evaluation.has_old


def failure(rule: Rule, evaluation: Evaluation, message: str) -> RuleFailure:
    """Return the failure of a rule for a value."""
    path, value = evaluation.path, evaluation.value
    for name, in_brackets in _path_steps(rule.field_path) or () if rule.field_path else ():
        path = f"{path}[{name}]" if in_brackets else f"{path}.{name}" if path else name
    shown = "" if isinstance(value, dict | list) or rule.field_path else quoted(value)
    ratcheted = not rule.uses_old and evaluation.is_unchanged
    return RuleFailure(path, message, rule.reason, shown, ratcheted)


def failed_message(rule: Rule, expression_value: str = "") -> str:
    """Return the message of a rule that is not true: of its expression, its message, or the rule itself."""
    text = expression_value.strip()
    if text and "\n" not in text and len(text.encode("utf-8", "replace")) <= MAX_MESSAGE_EXPRESSION_BYTES:
        return text
    return rule.message.strip() or f"failed rule: {rule.rule.strip()}"


def failures_as_errors(answer: EvaluatedRules | OutOfBudget) -> tuple[tuple[FieldError, ...], tuple[str, ...]]:
    """Return the errors of an object, and the warnings for values that an update left as they were."""
    if isinstance(answer, OutOfBudget):
        return (FieldError("<nil>", "", answer.reason),), ()
    errors, warnings = [], []
    for each in answer.failures:
        error = FieldError(each.path or "<nil>", each.value, each.message, REASONS.get(each.reason, INVALID))
        if each.ratcheted:
            shown = f"{each.value}: " if each.value else ""
            warnings.append(f"{error.path}: Invalid value: {shown}{each.message}")
        else:
            errors.append(error)
    return tuple(errors), tuple(warnings)
