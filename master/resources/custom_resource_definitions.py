"""CustomResourceDefinition: names, versions and schemas of kinds that users define. Pure.

The schema of a version is kept as the client has sent it. `master/apiextensions/` has the parsed form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from api.codec.limits import MAX_VALUES, copied, value_count
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_LONG, TOO_MANY, FieldError, quoted
from api.meta.types import Json, Object, StatusCondition, Value, merge_keys
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.apiextensions.defaulting import DefaultsTooLarge, default
from master.apiextensions.definitions import CLEANUP_FINALIZER
from master.apiextensions.jsonpath import JsonPathError, parse_jsonpath
from master.apiextensions.pruning import prune
from master.apiextensions.structural_schema import NO_DEFAULT, StructuralSchema, parse_schema, schema_errors
from master.apiextensions.validation import validate
from master.resources.client_config import WebhookClientConfig, check_client_config, default_client_config
from master.resources.printing import NAME
from master.resources.resource import Column, Resource
from master.resources.validation import immutable, required

SCOPES = ("Cluster", "Namespaced")
COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS = ("binary", "byte", "date", "date-time", "double", "float", "int32", "int64", "password")
REVIEW_VERSIONS = ("v1", "v1beta1")
MAX_SELECTABLE_FIELDS = 8
MAX_WARNING_LENGTH = 256
MAX_VERSIONS = 100
MAX_COLUMNS = 100
"""Columns of a version: each is computed for each row of a table."""

APPROVED_ANNOTATION = "api-approved.kubernetes.io"
PROTECTED_GROUPS = ("k8s.io", "kubernetes.io")


class CustomResourceDefinitionNames(Value, frozen=True):
    """The names of a kind, its resource and its lists."""

    plural: str = ""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    kind: str = ""
    list_kind: str = ""
    categories: tuple[str, ...] = ()


class WebhookConversion(Value, frozen=True):
    """The webhook that converts objects."""

    client_config: WebhookClientConfig | None = None
    conversion_review_versions: tuple[str, ...] = ()


class CustomResourceConversion(Value, frozen=True):
    """How objects are converted between versions. `strategy` is None or Webhook."""

    strategy: str = ""
    webhook: WebhookConversion | None = None


class CustomResourceValidation(Value, frozen=True):
    """The schema of a version."""

    open_apiv3_schema: Json = msgspec.field(default=None, name="openAPIV3Schema")


class CustomResourceSubresourceScale(Value, frozen=True):
    """Where an object has what the subresource `scale` shows."""

    spec_replicas_path: str = ""
    status_replicas_path: str = ""
    label_selector_path: str | None = None


class CustomResourceSubresources(Value, frozen=True):
    """The subresources of a version."""

    status: dict[str, Json] | None = None
    scale: CustomResourceSubresourceScale | None = None


class CustomResourceColumnDefinition(Value, frozen=True):
    """A column of a table."""

    name: str = ""
    type: str = ""
    format: str = ""
    description: str = ""
    priority: Int32 = 0
    json_path: str = msgspec.field(default="", name="jsonPath")


class SelectableField(Value, frozen=True):
    """A field for field selectors."""

    json_path: str = msgspec.field(default="", name="jsonPath")


class CustomResourceDefinitionVersion(Value, frozen=True):
    """A version of a kind. `storage` marks the one in which objects are stored."""

    name: str
    served: bool
    storage: bool
    deprecated: bool = False
    deprecation_warning: str | None = None
    schema: CustomResourceValidation | None = None
    subresources: CustomResourceSubresources | None = None
    additional_printer_columns: tuple[CustomResourceColumnDefinition, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class CustomResourceDefinitionSpec(Value, frozen=True):
    """The kind and its versions."""

    group: str = ""
    names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    scope: str = ""
    versions: tuple[CustomResourceDefinitionVersion, ...] = ()
    conversion: CustomResourceConversion | None = None
    preserve_unknown_fields: bool = False


class CustomResourceDefinitionStatus(Value, frozen=True):
    """The names that are served, and the versions in which objects may be stored."""

    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()
    accepted_names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    stored_versions: tuple[str, ...] = ()
    observed_generation: int = 0


class CustomResourceDefinition(Object, frozen=True):
    """Defines a kind of objects, which the server then serves."""

    API_VERSION = "apiextensions.k8s.io/v1"
    KIND = "CustomResourceDefinition"
    PLURAL = "customresourcedefinitions"
    NAMESPACED = False
    KEEPS_DECODED = False

    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()


# --- defaults and preparation -----------------------------------------------------------------------------------------


def _default_definition(crd: CustomResourceDefinition) -> CustomResourceDefinition:
    given = crd.spec.names
    completed = replace(
        given,
        singular=given.singular or given.kind.lower(),
        list_kind=given.list_kind or (f"{given.kind}List" if given.kind else ""),
    )
    conversion = crd.spec.conversion or CustomResourceConversion()
    conversion = replace(conversion, strategy=conversion.strategy or "None")
    webhook = conversion.webhook
    if webhook is not None and webhook.client_config is not None:
        config = default_client_config(webhook.client_config)
        conversion = replace(conversion, webhook=replace(webhook, client_config=config))
    return replace(crd, spec=replace(crd.spec, names=completed, conversion=conversion))


def _with_storage_version(crd: CustomResourceDefinition, status: CustomResourceDefinitionStatus) -> Any:
    """Return the definition with a status that names the storage version among the stored ones."""
    stored = list(status.stored_versions)
    stored += [version.name for version in crd.spec.versions if version.storage and version.name not in stored]
    return replace(crd, status=replace(status, stored_versions=tuple(stored)))


def is_established(crd: CustomResourceDefinition) -> bool:
    """Return whether the kind of a definition is served."""
    return any(each.type == "Established" and each.status == "True" for each in crd.status.conditions)


# --- validation -------------------------------------------------------------------------------------------------------


def _unsupported(path: str, value: str, accepted: tuple[str, ...]) -> FieldError:
    return FieldError(path, quoted(value), f"supported values: {', '.join(map(quoted, accepted))}", NOT_SUPPORTED)


def _validate_definition(crd: CustomResourceDefinition) -> Iterator[FieldError]:
    """Yield the errors of a definition apart from its schemas, which an update may keep as they are."""
    spec = crd.spec
    if crd.metadata.name and crd.metadata.name != f"{spec.names.plural}.{spec.group}":
        yield FieldError("metadata.name", quoted(crd.metadata.name), 'must be spec.names.plural+"."+spec.group')
    yield from required("spec.group", spec.group, names.dns_subdomain_error)
    if spec.group and "." not in spec.group:
        yield FieldError("spec.group", quoted(spec.group), "should be a domain with at least one dot")
    if not spec.scope:
        yield FieldError("spec.scope", '""', "", MISSING)
    elif spec.scope not in SCOPES:
        yield _unsupported("spec.scope", spec.scope, SCOPES)
    yield from _validate_names(spec.names)
    yield from _validate_approval(crd)
    if spec.preserve_unknown_fields:
        reason = "must be set to false, because a v1 definition has a structural schema"
        yield FieldError("spec.preserveUnknownFields", "true", reason)
    if len(spec.versions) > MAX_VERSIONS:
        yield FieldError("spec.versions", str(len(spec.versions)), f"must have at most {MAX_VERSIONS} items", TOO_MANY)
        return
    counts = Counter(version.name for version in spec.versions)
    if any(count > 1 for count in counts.values()):
        yield FieldError("spec.versions", quoted(sorted(counts)), "must contain unique version names")
    if sum(version.storage for version in spec.versions) != 1:
        reason = "must have exactly one version marked as storage version"
        yield FieldError("spec.versions", quoted(sorted(counts)), reason)
    for index, version in enumerate(spec.versions):
        yield from _validate_version(version, f"spec.versions[{index}]")
    yield from _validate_conversion(spec.conversion or CustomResourceConversion(strategy="None"))
    yield from _validate_stored_versions(crd)


def _validate_names(given: CustomResourceDefinitionNames) -> Iterator[FieldError]:
    path = "spec.names"
    yield from required(f"{path}.plural", given.plural, names.dns_1035_label_error)
    yield from required(f"{path}.singular", given.singular, names.dns_1035_label_error)
    for field, texts in (("shortNames", given.short_names), ("categories", given.categories)):
        for index, text in enumerate(texts):
            if error := names.dns_1035_label_error(text):
                yield FieldError(f"{path}.{field}[{index}]", quoted(text), error)
    for field, text in (("kind", given.kind), ("listKind", given.list_kind)):
        if not text:
            yield FieldError(f"{path}.{field}", '""', "", MISSING)
        elif error := names.dns_1035_label_error(text.lower()):
            reason = f"may have mixed case, but should otherwise match: {error}"
            yield FieldError(f"{path}.{field}", quoted(text), reason)
    if given.kind and given.kind == given.list_kind:
        yield FieldError(f"{path}.listKind", quoted(given.list_kind), "kind and listKind may not be the same")


def is_protected(group: str) -> bool:
    """Return whether a group belongs to the community of Kubernetes."""
    return any(group == protected or group.endswith(f".{protected}") for protected in PROTECTED_GROUPS)


def _validate_approval(crd: CustomResourceDefinition) -> Iterator[FieldError]:
    if not is_protected(crd.spec.group):
        return
    path = f"metadata.annotations[{APPROVED_ANNOTATION}]"
    text = crd.metadata.annotations.get(APPROVED_ANNOTATION, "")
    see = "see https://github.com/kubernetes/enhancements/pull/1111"
    if not text:
        reason = f"protected groups must have approval annotation {quoted(APPROVED_ANNOTATION)}, {see}"
        yield FieldError(path, '""', reason, MISSING)
    elif not text.startswith("unapproved") and not _is_url(text, ("http", "https")):
        reason = f"protected groups must have approval annotation {quoted(APPROVED_ANNOTATION)} with either a URL"
        yield FieldError(path, quoted(text), f'{reason} or a reason starting with "unapproved", {see}')


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname)


def _validate_version(version: CustomResourceDefinitionVersion, path: str) -> Iterator[FieldError]:
    yield from required(f"{path}.name", version.name, names.dns_1035_label_error)
    warning = version.deprecation_warning
    if warning is not None:
        warning_path = f"{path}.deprecationWarning"
        if not version.deprecated:
            yield FieldError(warning_path, quoted(warning), "can only be set for deprecated versions")
        elif not warning or not warning.isprintable():
            reason = "must be non-empty, and consist of printable UTF-8 characters"
            yield FieldError(warning_path, quoted(warning), reason)
        elif len(warning.encode()) > MAX_WARNING_LENGTH:
            yield FieldError(warning_path, "", f"may not be more than {MAX_WARNING_LENGTH} bytes", TOO_LONG)
    if version.schema is None or version.schema.open_apiv3_schema is None:
        yield FieldError(f"{path}.schema.openAPIV3Schema", "null", "schemas are required", MISSING)
    columns = version.additional_printer_columns
    if len(columns) > MAX_COLUMNS:
        reason = f"must have at most {MAX_COLUMNS} items"
        yield FieldError(f"{path}.additionalPrinterColumns", str(len(columns)), reason, TOO_MANY)
    for index, column in enumerate(columns[:MAX_COLUMNS]):
        yield from _validate_column(column, f"{path}.additionalPrinterColumns[{index}]")
    if version.subresources is not None and version.subresources.scale is not None:
        yield from _validate_scale(version.subresources.scale, f"{path}.subresources.scale")


def _validate_column(column: CustomResourceColumnDefinition, path: str) -> Iterator[FieldError]:
    if not column.name:
        yield FieldError(f"{path}.name", '""', "", MISSING)
    if not column.type:
        accepted = ",".join(COLUMN_TYPES)
        yield FieldError(f"{path}.type", '""', f"must be one of {accepted}", MISSING)
    elif column.type not in COLUMN_TYPES:
        yield FieldError(f"{path}.type", quoted(column.type), f"must be one of {','.join(COLUMN_TYPES)}")
    if column.format and column.format not in COLUMN_FORMATS:
        yield FieldError(f"{path}.format", quoted(column.format), f"must be one of {','.join(COLUMN_FORMATS)}")
    if not column.json_path:
        yield FieldError(f"{path}.jsonPath", '""', "", MISSING)
    else:
        yield from _validate_path(column.json_path, f"{path}.jsonPath")


def _validate_path(text: str, path: str) -> Iterator[FieldError]:
    reason = "must be a simple json path starting with ."
    if not text.startswith("."):
        yield FieldError(path, quoted(text), reason)
        return
    try:
        parse_jsonpath(text)
    except JsonPathError as error:
        yield FieldError(path, quoted(text), f"{reason}: {error}")


def _validate_scale(scale: CustomResourceSubresourceScale, path: str) -> Iterator[FieldError]:
    rows = (
        ("specReplicasPath", scale.spec_replicas_path, ("spec",), True),
        ("statusReplicasPath", scale.status_replicas_path, ("status",), True),
        ("labelSelectorPath", scale.label_selector_path or "", ("spec", "status"), False),
    )
    for field, text, roots, is_required in rows:
        if not text:
            if is_required:
                yield FieldError(f"{path}.{field}", '""', "", MISSING)
            continue
        found = _field_names(text)
        if len(found) < 2 or found[0] not in roots:
            accepted = " or ".join(f".{root}" for root in roots)
            yield FieldError(f"{path}.{field}", quoted(text), f"should be a json path under {accepted}")


def _field_names(text: str) -> tuple[str, ...]:
    """Return the fields of a path without other steps, which begins with a dot; none for another text."""
    if not text.startswith(".") or "[" in text:
        return ()
    try:
        return parse_jsonpath(text).names or ()
    except JsonPathError:
        return ()


def _validate_conversion(conversion: CustomResourceConversion) -> Iterator[FieldError]:
    path = "spec.conversion"
    if conversion.strategy not in ("None", "Webhook"):
        yield _unsupported(f"{path}.strategy", conversion.strategy, ("None", "Webhook"))
    if conversion.strategy != "Webhook":
        if conversion.webhook is not None:
            reason = "should not be set when strategy is not set to Webhook"
            yield FieldError(f"{path}.webhook", "given", reason, FORBIDDEN)
        return
    webhook = conversion.webhook
    if webhook is None or webhook.client_config is None:
        reason = "required when strategy is set to Webhook"
        yield FieldError(f"{path}.webhook.clientConfig", "null", reason, MISSING)
        return
    yield from check_client_config(f"{path}.webhook.clientConfig", webhook.client_config)
    versions_path = f"{path}.webhook.conversionReviewVersions"
    versions = webhook.conversion_review_versions
    if not versions:
        yield FieldError(versions_path, "[]", "", MISSING)
    elif not set(versions) & set(REVIEW_VERSIONS):
        yield FieldError(versions_path, quoted(versions), f"must include at least one of {', '.join(REVIEW_VERSIONS)}")


def _validate_stored_versions(crd: CustomResourceDefinition) -> Iterator[FieldError]:
    stored, path = crd.status.stored_versions, "status.storedVersions"
    if not stored:
        yield FieldError(path, "[]", "must have at least one stored version")
        return
    known = {version.name for version in crd.spec.versions}
    for index, name in enumerate(stored[:MAX_VERSIONS]):
        if name not in known:
            reason = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration "
                f"ensures no data remains persisted in {name} and removes {name} from "
                "status.storedVersions"
            )
            yield FieldError(f"{path}[{index}]", quoted(name), reason)
    for version in crd.spec.versions:
        if version.storage and version.name not in stored:
            yield FieldError(path, quoted(stored), f"must have the storage version {version.name}")


def _validate_update(old: CustomResourceDefinition, new: CustomResourceDefinition) -> Iterator[FieldError]:
    """Yield the changes that are not accepted, and the errors of schemas that the old definition did not have."""
    yield from immutable(
        ("spec.group", old.spec.group, new.spec.group),
        ("spec.names.plural", old.spec.names.plural, new.spec.names.plural),
    )
    if is_established(old):
        yield from immutable(
            ("spec.scope", old.spec.scope, new.spec.scope),
            ("spec.names.kind", old.spec.names.kind, new.spec.names.kind),
        )
    known = {version.name: version for version in old.spec.versions}
    changed = [
        (index, version)
        for index, version in enumerate(new.spec.versions[:MAX_VERSIONS])
        if _schema_part(known.get(version.name)) != _schema_part(version)
    ]
    found = [error for index, version in changed for error in _version_schema_errors(version, index)]
    if found:
        # What the definition violates already is not held against its update.
        earlier = {error.detail for error in _all_schema_errors(old)}
        yield from (error for error in found if error.detail not in earlier)


def _schema_part(version: CustomResourceDefinitionVersion | None) -> object:
    if version is None:
        return None
    return version.schema, version.selectable_fields, _has_status(version)


def _has_status(version: CustomResourceDefinitionVersion) -> bool:
    return version.subresources is not None and version.subresources.status is not None


def _all_schema_errors(crd: CustomResourceDefinition) -> Iterator[FieldError]:
    for index, version in enumerate(crd.spec.versions[:MAX_VERSIONS]):
        yield from _version_schema_errors(version, index)


def _version_schema_errors(version: CustomResourceDefinitionVersion, index: int) -> Iterator[FieldError]:
    raw = None if version.schema is None else version.schema.open_apiv3_schema
    if raw is None:
        return
    path = f"spec.versions[{index}].schema.openAPIV3Schema"
    problems = schema_errors(raw, path, _has_status(version))
    yield from problems
    if not problems:
        schema = parse_schema(raw)
        yield from _default_errors(schema, path, _DefaultValues())
        yield from _validate_selectable_fields(version, schema, f"spec.versions[{index}].selectableFields")


class _DefaultValues:
    """The number of values in the defaults of a schema. Each is pruned and validated."""

    def __init__(self) -> None:
        self.count = 0


def _default_errors(schema: StructuralSchema, path: str, values: _DefaultValues) -> Iterator[FieldError]:
    if schema.default is not NO_DEFAULT:
        values.count += value_count(schema.default) + 1
        if values.count > MAX_VALUES:
            reason = f"the defaults of a schema must have at most {MAX_VALUES} values"
            yield FieldError(f"{path}.default", "given", reason, TOO_MANY)
            return
        yield from _one_default_errors(schema, f"{path}.default")
    for name, inner in schema.properties.items():
        yield from _default_errors(inner, f"{path}.properties[{name}]", values)
    if schema.items is not None:
        yield from _default_errors(schema.items, f"{path}.items", values)
    if schema.additional_properties is not None:
        yield from _default_errors(schema.additional_properties, f"{path}.additionalProperties", values)


def _one_default_errors(schema: StructuralSchema, path: str) -> Iterator[FieldError]:
    value = {"default": copied(schema.default)}
    holder = StructuralSchema(type="object", properties={"default": schema}, is_unique=schema.is_unique)
    if prune(value, holder):
        yield FieldError(path, quoted(schema.default), "must not have unknown fields")
        return
    try:
        default(value, holder)
    except DefaultsTooLarge as error:
        yield FieldError(path, quoted(schema.default), str(error))
        return
    for problem in validate(value, None, holder):
        yield problem._replace(path=f"{path.removesuffix('default')}{problem.path}")


def _validate_selectable_fields(
    version: CustomResourceDefinitionVersion, schema: StructuralSchema, path: str
) -> Iterator[FieldError]:
    fields = version.selectable_fields
    if len(fields) > MAX_SELECTABLE_FIELDS:
        yield FieldError(path, str(len(fields)), f"must have at most {MAX_SELECTABLE_FIELDS} items", TOO_MANY)
        return
    seen = set[str]()
    for index, field in enumerate(fields):
        field_path, text = f"{path}[{index}].jsonPath", field.json_path
        if text in seen:
            yield FieldError(field_path, quoted(text), "", "FieldValueDuplicate")
        seen.add(text)
        found = _field_names(text)
        if not found:
            reason = "must be a simple json path of fields, which begins with . and has no array notation"
            yield FieldError(field_path, quoted(text), reason)
        elif found[0] == "metadata":
            yield FieldError(field_path, quoted(text), "must not point to fields in metadata")
        elif (kind := _type_at(schema, found)) not in ("string", "boolean", "integer"):
            reason = "must point to a field of type string, boolean or integer. Enum string fields and strings with "
            yield FieldError(field_path, quoted(text), f"{reason}formats are allowed (found {kind or 'no field'})")


def _type_at(schema: StructuralSchema, found: tuple[str, ...]) -> str:
    for name in found:
        inner = schema.properties.get(name)
        if inner is None:
            return ""
        schema = inner
    return schema.type


CUSTOM_RESOURCE_DEFINITIONS = Resource(
    type=CustomResourceDefinition,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    columns=(
        NAME,
        Column(
            "Created At", "Time at which the definition was created.", lambda crd, _: crd.metadata.creation_timestamp
        ),
    ),
    prepare_for_create=lambda crd: _with_storage_version(crd, CustomResourceDefinitionStatus()),
    prepare_for_update=lambda new, old: _with_storage_version(new, old.status),
    spec=lambda crd: crd.spec,
    rules=KindRules(
        _default_definition,
        _validate_definition,
        _validate_update,
        validate_create=_all_schema_errors,
    ),
    status_update_keeps_metadata=True,
    deletion_finalizer=CLEANUP_FINALIZER,
    acted_on_by="the server, which serves the kind",
)
