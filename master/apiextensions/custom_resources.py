"""The resources of the versions of a kind that a CustomResourceDefinition defines. Pure.

An object is a struct, as those of built-in kinds: typed metadata, and a field of any form for each property at the root
of the schema. The stored resource has the fields of all versions. Each served version is another version of it, whose
objects are made of the stored JSON: another apiVersion, unknown fields removed, and defaults set.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import msgspec

from api.codec.limits import copied
from api.meta.schema import FieldError, quoted
from api.meta.types import Object, ObjectMeta
from api.validation.registry import KindRules
from master import errors
from master.admission.webhooks.calls import webhook_target
from master.apiextensions.conversion import Conversions, ConversionWebhook, convert
from master.apiextensions.defaulting import DefaultsTooLarge, default
from master.apiextensions.definitions import MAX_ROOT_FIELDS, Definition, Names, Version, read_schemas, version_order
from master.apiextensions.jsonpath import parse_jsonpath
from master.apiextensions.merge_schema import merge_schema_of_schema
from master.apiextensions.pruning import prune
from master.apiextensions.structural_schema import StructuralSchema, is_field_name, parse_schema
from master.apiextensions.validation import validate, validate_status
from master.cel.rules import encode_rules
from master.resources import resource as resources
from master.resources.custom_resource_definitions import REVIEW_VERSIONS
from master.resources.merge_schema import MergeKind, MergeSchema, merge_schema_of
from master.resources.metadata import parse_time
from master.resources.printing import AGE, NAME, age
from master.resources.resource import AnyResource, Column, Resource, Scale
from master.resources.scheme import CustomKind

Document = dict[str, Any]

TYPE_FIELDS = ("apiVersion", "kind", "metadata")
"""The fields that every object has, which are no part of the schema's properties."""

MAX_TYPES = 256
"""Types with further root fields that a version keeps, if its schema preserves unknown fields at the root. A type takes
40 us and 2 KB.
"""

MAX_CELL_ITEMS = 1_000
"""Values that the path of a column visits in one object."""

MAX_CELL_CHARACTERS = 8_192


class _Root(msgspec.Struct, frozen=True, rename="kebab"):
    """The root of a schema, without the schemas of its properties."""

    properties: dict[str, msgspec.Raw] = {}
    x_kubernetes_preserve_unknown_fields: bool = False


def _root(schema: msgspec.Raw) -> _Root:
    """Return the root of a version's schema; one that preserves unknown fields if it is none."""
    try:
        return msgspec.json.decode(schema, type=_Root)
    except msgspec.MsgspecError:
        return _Root(x_kubernetes_preserve_unknown_fields=True)


# --- types ------------------------------------------------------------------------------------------------------------


class ObjectTypes:
    """The types of the objects of a version: `base`, and one for each set of further root fields, if there may be such.

    `names` are the root fields that the schema declares.
    """

    def __init__(self, attributes: Mapping[str, object], names: Iterable[str], *, is_open: bool) -> None:
        self._attributes = dict(attributes)
        self._names = tuple(name for name in dict.fromkeys(names) if name not in TYPE_FIELDS and is_field_name(name))
        self._is_open = is_open
        self._others: OrderedDict[tuple[str, ...], type[Object]] = OrderedDict()
        self.base = self._type(self._names)

    def _type(self, names: Sequence[str]) -> type[Object]:
        # A name may be no name in Python, or that of an attribute of the base.
        fields = {name if name in ("spec", "status") else f"field_{number}": name for number, name in enumerate(names)}
        made = msgspec.defstruct(
            str(self._attributes["KIND"]),
            [(attribute, Any, msgspec.UNSET) for attribute in fields],
            bases=(Object,),
            module=__name__,
            namespace=dict(self._attributes),
            frozen=True,
            rename=fields,
        )
        return cast("type[Object]", made)

    def undeclared(self, fields: Iterable[str]) -> set[str]:
        """Return the root fields that the schema does not declare."""
        return set(fields).difference(self._names, TYPE_FIELDS)

    def of(self, fields: Iterable[str]) -> type[Object]:
        """Return the type of an object with these root fields."""
        if not self._is_open:
            return self.base
        others = tuple(sorted(filter(is_field_name, self.undeclared(fields))))
        if not others:
            return self.base
        known = self._others.get(others)
        if known is None:
            known = self._others[others] = self._type((*self._names, *others))
            if len(self._others) > MAX_TYPES:
                self._others.popitem(last=False)
        else:
            self._others.move_to_end(others)
        return known

    def build(self, fields: Mapping[str, Any], api_version: str, kind: str, metadata: ObjectMeta) -> Object:
        """Return the object with these root fields. Fields that no type may have are dropped.

        It never fails: a stored object may have more fields than a request, if its schema named them once.
        """
        of = self.of(fields)
        names = zip(of.__struct_fields__[3:], of.__struct_encode_fields__[3:], strict=True)
        values = {attribute: fields[name] for attribute, name in names if name in fields}
        return of(api_version=api_version, kind=kind, metadata=metadata, **values)

    def decode(self, data: bytes) -> Object:
        """Return the object of a stored JSON. Raises MsgspecError."""
        if not self._is_open:
            return msgspec.json.decode(data, type=self.base)
        head = msgspec.json.decode(data, type=Object)
        return self.build(msgspec.json.decode(data), head.api_version, head.kind, head.metadata)


def root_fields(obj: Object) -> Document:
    """Return the root fields of an object besides apiVersion, kind and metadata. They are not copied."""
    names = zip(obj.__struct_fields__[3:], obj.__struct_encode_fields__[3:], strict=True)
    found = ((name, getattr(obj, attribute)) for attribute, name in names)
    return {name: value for name, value in found if value is not msgspec.UNSET}


def document_of(obj: Object) -> Document:
    """Return an object as a document. Its root fields are not copied."""
    head = {"apiVersion": obj.api_version, "kind": obj.kind, "metadata": msgspec.to_builtins(obj.metadata)}
    return {**head, **root_fields(obj)}


# --- a version --------------------------------------------------------------------------------------------------------


class VersionRules:
    """The rules of one version (`DocumentRules`). The schema is parsed at the first use.

    A stored definition whose schema cannot be parsed, such as one that an earlier master accepted, costs only the
    requests for its own objects: they get 500. `conversions` are the known results of the webhook, if one converts the
    objects of other versions.
    """

    def __init__(
        self,
        definition: Definition,
        version: Version,
        types: ObjectTypes,
        load: Callable[[], bytes],
        conversions: Conversions,
    ) -> None:
        self.uid = definition.metadata.uid
        self.is_terminating = definition.is_terminating
        self.types = types
        self.api_version = f"{definition.spec.group}/{version.name}"
        self.kind = definition.served_names.kind
        self._name = definition.name
        self._load = load
        self._version = version.name
        self._has_status = version.subresources is not None and version.subresources.status is not None
        self._webhook = _conversion_webhook(definition)
        self._conversions = conversions

    def published_schema(self) -> Document:
        """Return the schema as the client has written it."""
        schema: Document = msgspec.json.decode(read_schemas(self._load())[self._version])
        return schema

    def encoded_rules(self) -> bytes:
        """Return the rules in CEL of the schema as the worker takes them; empty if there are none."""
        return self._encoded_rules

    @cached_property
    def _encoded_rules(self) -> bytes:
        return encode_rules(self.published_schema())

    @cached_property
    def schema(self) -> StructuralSchema:
        """Return the parsed schema. Raises StatusError if it cannot be parsed."""
        try:
            published = self.published_schema()
            if not isinstance(published, dict):
                raise TypeError("it is not an object")
            return parse_schema(published)
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.MsgspecError) as error:
            message = f"the schema of {self.api_version} in the CustomResourceDefinition {self._name} is not usable"
            raise errors.status_error(500, "InternalError", f"{message}: {error}") from error

    def admit(self, document: Document) -> tuple[str, ...]:
        """Remove unknown fields and set defaults, in place. Return the paths of the unknown fields.

        Raises StatusError for a document that no stored object may be.
        """
        try:
            unknown = self._complete(document)
        except DefaultsTooLarge as error:
            raise errors.status_error(
                413, "RequestEntityTooLarge", f"{self.kind} with its defaults: {error}"
            ) from error
        others = self.types.undeclared(document)
        if len(others) > MAX_ROOT_FIELDS:
            raise errors.status_error(
                413,
                "RequestEntityTooLarge",
                f"the object has {len(others)} fields that its schema does not name; {MAX_ROOT_FIELDS} are accepted",
            )
        for name in others:
            if not is_field_name(name):
                raise errors.bad_request(f"{quoted(name)} is not accepted as the name of a field of a {self.kind}")
        return unknown

    def _complete(self, document: Document) -> tuple[str, ...]:
        """Remove unknown fields and set defaults, in place. Return the paths of the unknown fields.

        Raises DefaultsTooLarge; the document is then partly changed.
        """
        head = {name: document.pop(name) for name in TYPE_FIELDS if name in document}
        unknown = prune(document, self.schema)
        default(document, self.schema)
        fields = dict(document)
        document.clear()
        document.update(head)
        document.update(fields)
        return unknown

    def build(self, document: Mapping[str, Any], metadata: ObjectMeta) -> Object:
        """Return the object of an admitted document."""
        return self.types.build(document, self.api_version, self.kind, metadata)

    def from_bytes(self, data: bytes) -> Object:
        """Return the object of a stored JSON in this version. Raises MsgspecError and CallsPending.

        The object was accepted in another version, or by an earlier schema. One that the defaults of this schema make
        too large has none of them: it must not keep its kind from being listed, nor itself from being deleted.
        """
        document = self._converted(data)
        metadata = msgspec.convert(document["metadata"], ObjectMeta)
        try:
            self._complete(document)
        except DefaultsTooLarge:
            document = self._converted(data)
            prune(document, self.schema)
        return self.build(document, metadata)

    def _converted(self, data: bytes) -> Document:
        """Return the document of a stored JSON, converted if a webhook does that. Raises MsgspecError, CallsPending."""
        document: Document = msgspec.json.decode(data)
        if self._webhook is None or document["apiVersion"] == self.api_version:
            return document
        return convert(document, self._webhook, self.kind, self.api_version, self._conversions)

    def from_object(self, obj: Object) -> Object:
        """Return an object of another version, or a stored one, in this version. Raises CallsPending."""
        return self.from_bytes(msgspec.json.encode(obj))

    @property
    def is_converted_by_webhook(self) -> bool:
        """Return whether a webhook converts the objects of other versions."""
        return self._webhook is not None

    def validate(self, new: Object, old: Object | None, subresource: str) -> Iterator[FieldError]:
        """Yield the errors of an object, or of its status; `old` is the state before an update."""
        if old is not None and self.is_released(new, old):
            return
        before = None if old is None else document_of(old)
        check = validate_status if subresource == "status" else validate
        yield from check(document_of(new), before, self.schema)

    def is_released(self, new: Object, old: Object) -> bool:
        """Return whether an update changes nothing but metadata of an object that is being deleted.

        It may remove the last finalizer, also of an object that the schema of today does not accept.
        """
        return bool(old.metadata.deletion_timestamp) and root_fields(new) == root_fields(old)

    def undeclared_field(self, document: Mapping[str, Any]) -> str | None:
        """Return the first field of an apply that the schema does not declare."""
        fields = {name: value for name, value in document.items() if name not in TYPE_FIELDS}
        return next(iter(prune(copied(fields), self.schema)), None)

    def merge_schema(self) -> MergeSchema:
        """Return how patches and apply merge the parts of an object."""
        return self._merge_schema

    @cached_property
    def _merge_schema(self) -> MergeSchema:
        of_schema = merge_schema_of_schema(self.schema)
        head = merge_schema_of(Object).fields
        return MergeSchema(MergeKind.STRUCT, fields={**of_schema.fields, **head})

    @property
    def has_status(self) -> bool:
        """Return whether there is a subresource status."""
        return self._has_status


def _conversion_webhook(definition: Definition) -> ConversionWebhook | None:
    """Return the webhook that converts the objects of a definition; None if only their apiVersion changes."""
    conversion = definition.spec.conversion
    if conversion is None or conversion.webhook is None:
        return None
    webhook = conversion.webhook
    version = next(name for name in webhook.conversion_review_versions if name in REVIEW_VERSIONS)
    state = (definition.metadata.uid, definition.metadata.generation)
    return ConversionWebhook(state, webhook_target(webhook.client_config), version)


# --- resources --------------------------------------------------------------------------------------------------------


def build_kind(definition: Definition, load: Callable[[], bytes], conversions: Conversions) -> CustomKind:
    """Return the kind of a definition, to be served under its accepted names. `load` returns its stored JSON.

    `conversions` are the known results of conversion webhooks. Raises ValueError.
    """
    names, spec = definition.served_names, definition.spec
    storage = definition.storage_version()
    schemas = read_schemas(load())
    roots = {version.name: _root(schemas[version.name]) for version in spec.versions}
    all_versions = (storage, *(version for version in spec.versions if version is not storage))
    attributes = {
        "KIND": names.kind,
        "PLURAL": names.plural,
        "NAMESPACED": spec.scope == "Namespaced",
        "__doc__": f"A {names.kind}.",
    }
    stored_types = ObjectTypes(
        {**attributes, "API_VERSION": f"{spec.group}/{storage.name}", "IS_STORED_IN_VERSIONS": True},
        ("spec", "status", *(name for version in all_versions for name in roots[version.name].properties)),
        is_open=any(root.x_kubernetes_preserve_unknown_fields for root in roots.values()),
    )
    stored: Resource[Any] = Resource(type=stored_types.base, columns=(NAME, AGE), rules=KindRules())
    rules: dict[str, VersionRules] = {}
    for version in spec.versions:
        status = ("status",) if version.subresources is not None and version.subresources.status is not None else ()
        types = ObjectTypes(
            {**attributes, "API_VERSION": f"{spec.group}/{version.name}"},
            (*(name for name in ("spec", "status") if name in roots[version.name].properties),
             *roots[version.name].properties, *status),
            is_open=roots[version.name].x_kubernetes_preserve_unknown_fields,
        )  # fmt: skip
        rules[version.name] = VersionRules(definition, version, types, load, conversions)
    served = sorted((version for version in spec.versions if version.served), key=lambda each: version_order(each.name))
    return CustomKind(
        stored=stored,
        versions=tuple(
            _resource(definition, version, rules, stored_types, stored, names, storage) for version in served
        ),
        uid=definition.metadata.uid,
        fingerprint=_fingerprint(definition),
        decode=stored_types.decode,
    )


def _fingerprint(definition: Definition) -> str:
    state = (definition.metadata.uid, definition.metadata.generation, definition.served_names)
    return hashlib.sha256(msgspec.json.encode(state)).hexdigest()


def _resource(
    definition: Definition,
    version: Version,
    rules: Mapping[str, VersionRules],
    stored_types: ObjectTypes,
    stored: AnyResource,
    names: Names,
    storage: Version,
) -> AnyResource:
    own, of_storage = rules[version.name], rules[storage.name]

    def to_stored(obj: Object) -> Object:
        if own is of_storage:
            return stored_types.build(root_fields(obj), of_storage.api_version, names.kind, obj.metadata)
        shown = of_storage.from_object(obj)
        made = stored_types.build(root_fields(shown), of_storage.api_version, names.kind, shown.metadata)
        if own.is_converted_by_webhook:
            own.from_object(made)  # The response to the write needs it, when it is too late to ask the webhook.
        return made

    has_status = own.has_status
    return Resource(
        type=own.types.base,
        columns=_columns(version),
        rules=KindRules(warnings=_finalizer_warnings),
        short_names=names.short_names,
        categories=names.categories,
        selectable_fields=_selectable_fields(version),
        prepare_for_create=_without_status if has_status else resources.accept_status,
        prepare_for_update=resources.keep_status if has_status else _unchanged,
        with_status=resources.replace_status if has_status else None,
        spec=_desired_state if has_status else root_fields,
        scale=_scale(version),
        stored_as=resources.Version(
            of=stored, from_stored=own.from_object, to_stored=to_stored, from_bytes=own.from_bytes
        ),
        status_update_keeps_metadata=True,
        singular_name=names.singular,
        list_kind_name=names.list_kind,
        documents=own,
        deprecation_warning=_deprecation_warning(definition, version, names.kind),
    )


def _unchanged(new: Object, old: Object) -> Object:
    del old
    return new


def _without_status(new: Object) -> Object:
    changes: dict[str, Any] = {"status": msgspec.UNSET}
    return msgspec.structs.replace(new, **changes)


def _desired_state(obj: Object) -> Document:
    """Return the part of an object whose change counts as a new generation: all but metadata and status."""
    return {name: value for name, value in root_fields(obj).items() if name != "status"}


def _finalizer_warnings(obj: Object) -> Iterator[str]:
    for name in obj.metadata.finalizers:
        if "/" not in name and name not in ("orphan", "foregroundDeletion", "kubernetes"):
            yield (
                f"metadata.finalizers: {quoted(name)}: prefer a domain-qualified finalizer name including a path (/) "
                "to avoid accidental conflicts with other finalizer writers"
            )


def _deprecation_warning(definition: Definition, version: Version, kind: str) -> str:
    """Return the warning of a deprecated version, which names the newest version that is served and not deprecated."""
    if not version.deprecated:
        return ""
    if version.deprecation_warning is not None:
        return version.deprecation_warning
    group = definition.spec.group
    newer = sorted(
        (
            each.name
            for each in definition.spec.versions
            if each.served and not each.deprecated and version_order(each.name) < version_order(version.name)
        ),
        key=version_order,
    )
    text = f"{group}/{version.name} {kind} is deprecated"
    return f"{text}; use {group}/{newer[0]} {kind}" if newer else text


# --- columns and field selectors --------------------------------------------------------------------------------------


def _columns(version: Version) -> tuple[Column, ...]:
    """Return the columns of a Table: Name, and those of the version; without any, Name and Age.

    A column with a path that cannot be parsed is left out with those after it.
    """
    if not version.additional_printer_columns:
        return NAME, AGE
    columns = [NAME]
    for column in version.additional_printer_columns:
        try:
            find = parse_jsonpath(column.json_path).find
        except ValueError:
            break
        columns.append(
            Column(
                column.name,
                column.description or f"Custom resource definition column (in JSONPath format): {column.json_path}",
                _cell(find, column.type),
                column.type,
                column.format,
                wide=column.priority > 0,
            )
        )
    return tuple(columns)


def _cell(find: Callable[[Any, int], Iterable[Any]], kind: str) -> Callable[[Any, datetime.datetime], object]:
    def cell(obj: Object, now: datetime.datetime) -> object:
        found = find(document_of(obj), MAX_CELL_ITEMS)
        value = next(iter(found), None)
        return None if value is None else _shown(value, kind, now)

    return cell


def _shown(value: Any, kind: str, now: datetime.datetime) -> object:
    """Return the value in a cell of a column of this type; None for a value of another type."""
    if kind == "string":
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return text[:MAX_CELL_CHARACTERS]
    if kind == "date":
        return age(value, now) if isinstance(value, str) and parse_time(value) is not None else "<invalid>"
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if kind == "integer" else value


def _selectable_fields(version: Version) -> Callable[[Object], Mapping[str, str]]:
    paths = {each.json_path.lstrip("."): _steps(each.json_path) for each in version.selectable_fields}

    def values(obj: Object) -> Mapping[str, str]:
        fields = root_fields(obj) if paths else {}
        return {name: _selector_text(_value_at(fields, steps)) for name, steps in paths.items()}

    return values


def _selector_text(value: Any) -> str:
    """Return the value of a field as field selectors write it."""
    if value is None or isinstance(value, dict | list):
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- scale ------------------------------------------------------------------------------------------------------------


def _steps(path: str) -> tuple[str, ...]:
    """Return the fields that a simple path such as `.spec.replicas` names."""
    return tuple(part for part in path.replace("['", ".").replace("']", "").split(".") if part)


def _value_at(fields: Any, steps: Iterable[str]) -> Any:
    for step in steps:
        if not isinstance(fields, dict):
            return None
        fields = fields.get(step)
    return fields


def _with_value(fields: Any, steps: Sequence[str], value: Any) -> Document:
    """Return a map with another value at a path. Only the maps on the path are copied."""
    own = dict(fields) if isinstance(fields, dict) else {}
    own[steps[0]] = value if len(steps) == 1 else _with_value(own.get(steps[0]), steps[1:], value)
    return own


def _scale(version: Version) -> Scale[Any] | None:
    paths = None if version.subresources is None else version.subresources.scale
    if paths is None:
        return None
    desired, actual = _steps(paths.spec_replicas_path), _steps(paths.status_replicas_path)
    selector = _steps(paths.label_selector_path)

    def number(obj: Object, steps: Sequence[str]) -> int:
        value = _value_at(root_fields(obj), steps)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def replicas(obj: Object) -> int:
        if _value_at(root_fields(obj), desired) is None:
            message = f'the spec replicas field "{paths.spec_replicas_path}" does not exist'
            raise errors.status_error(500, "InternalError", message)
        return number(obj, desired)

    def with_replicas(obj: Object, count: int) -> Object:
        changes = {"spec": _with_value(root_fields(obj), desired, count)["spec"]}
        return msgspec.structs.replace(obj, **changes)

    def selector_of(obj: Object) -> str:
        value = _value_at(root_fields(obj), selector) if selector else ""
        return value if isinstance(value, str) else ""

    return Scale(replicas, lambda obj: number(obj, actual), selector_of, with_replicas)
