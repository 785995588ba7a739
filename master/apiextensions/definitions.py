"""The part of a CustomResourceDefinition that naming and serving need, read without its schemas. Pure.

A definition may have 500 KB of schemas. A schema is read with the first request for objects of its version.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from api.meta.types import ObjectMeta
from master.resources.client_config import WebhookClientConfig
from master.resources.group_resource import GroupResource

GROUP = "apiextensions.k8s.io"
DEFINITIONS = GroupResource(GROUP, "customresourcedefinitions")
"""The resource of definitions."""

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer that keeps a definition until its last object is deleted."""

MAX_ROOT_FIELDS = 1_000
"""Root fields of an object."""

ESTABLISHED, NAMES_ACCEPTED, TERMINATING = "Established", "NamesAccepted", "Terminating"


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of the parts of a definition."""


class Names(_Part, frozen=True):
    """The names of a kind."""

    plural: str = ""
    singular: str = ""
    kind: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def completed(self) -> Names:
        """Return the names with the default singular name and kind of lists."""
        return msgspec.structs.replace(
            self, singular=self.singular or self.kind.lower(), list_kind=self.list_kind or f"{self.kind}List"
        )


class PrinterColumn(_Part, frozen=True):
    """A column of `kubectl get`."""

    name: str = ""
    type: str = ""
    json_path: str = msgspec.field(default="", name="jsonPath")
    format: str = ""
    description: str = ""
    priority: int = 0


class SelectableField(_Part, frozen=True):
    """A field that field selectors may name."""

    json_path: str = msgspec.field(default="", name="jsonPath")


class ScalePaths(_Part, frozen=True):
    """Where the subresource scale finds its numbers and its selector."""

    spec_replicas_path: str = ""
    status_replicas_path: str = ""
    label_selector_path: str = ""


class Subresources(_Part, frozen=True):
    """The subresources of a version; None for one that is off."""

    status: dict[str, Any] | None = None
    scale: ScalePaths | None = None


class Version(_Part, frozen=True):
    """A version of a kind."""

    name: str = ""
    served: bool = False
    storage: bool = False
    deprecated: bool = False
    deprecation_warning: str | None = None
    subresources: Subresources | None = None
    additional_printer_columns: tuple[PrinterColumn, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class WebhookConversion(_Part, frozen=True):
    """The webhook that converts objects."""

    client_config: WebhookClientConfig = WebhookClientConfig()
    conversion_review_versions: tuple[str, ...] = ()


class Conversion(_Part, frozen=True):
    """How objects are converted between versions."""

    strategy: str = "None"
    webhook: WebhookConversion | None = None


class DefinitionSpec(_Part, frozen=True):
    """What a definition defines."""

    group: str = ""
    names: Names = Names()
    scope: str = ""
    versions: tuple[Version, ...] = ()
    conversion: Conversion | None = None


class DefinitionCondition(_Part, frozen=True):
    """A condition of a definition."""

    type: str = ""
    status: str = ""
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class DefinitionStatus(_Part, frozen=True):
    """What became of a definition."""

    conditions: tuple[DefinitionCondition, ...] = ()
    accepted_names: Names | None = None
    stored_versions: tuple[str, ...] = ()
    observed_generation: int = 0

    def condition(self, name: str) -> DefinitionCondition | None:
        """Return a condition; None if there is none of that type."""
        return next((condition for condition in self.conditions if condition.type == name), None)

    def is_true(self, name: str) -> bool:
        """Return whether a condition is True."""
        condition = self.condition(name)
        return condition is not None and condition.status == "True"


class Definition(_Part, frozen=True):
    """A CustomResourceDefinition without the content of its schemas."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DefinitionSpec = DefinitionSpec()
    status: DefinitionStatus = DefinitionStatus()

    @property
    def name(self) -> str:
        """Return the name of the definition: plural name and group."""
        return self.metadata.name

    @property
    def group_resource(self) -> GroupResource:
        """Return group and plural name of the defined kind."""
        return GroupResource(self.spec.group, self.spec.names.plural)

    @property
    def is_established(self) -> bool:
        """Return whether the kind is served."""
        return self.status.is_true(ESTABLISHED)

    @property
    def is_terminating(self) -> bool:
        """Return whether the definition is being deleted."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def served_names(self) -> Names:
        """Return the names under which the kind is served."""
        accepted = self.status.accepted_names
        return self.spec.names.completed() if accepted is None or not accepted.kind else accepted.completed()

    def storage_version(self) -> Version:
        """Return the version in which objects are stored. Raises ValueError if there is none."""
        found = next((version for version in self.spec.versions if version.storage), None)
        if found is None:
            raise ValueError(f"{self.name} has no storage version")
        return found


def read_definition(data: bytes) -> Definition:
    """Return the definition of a stored JSON. Raises MsgspecError."""
    return msgspec.json.decode(data, type=Definition)


class _Schema(_Part, frozen=True):
    open_api_v3_schema: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="openAPIV3Schema")


class _VersionWithSchema(_Part, frozen=True):
    name: str = ""
    schema: _Schema = _Schema()


class _SpecWithSchemas(_Part, frozen=True):
    versions: tuple[_VersionWithSchema, ...] = ()


class _DefinitionWithSchemas(_Part, frozen=True):
    spec: _SpecWithSchemas = _SpecWithSchemas()


def read_schemas(data: bytes) -> dict[str, msgspec.Raw]:
    """Return the schema of each version of a stored definition, as JSON. Raises MsgspecError."""
    read = msgspec.json.decode(data, type=_DefinitionWithSchemas)
    return {version.name: version.schema.open_api_v3_schema for version in read.spec.versions}


_VERSION = re.compile(r"v([1-9][0-9]{0,9})(?:(alpha|beta)([1-9][0-9]{0,9}))?")
_STAGES: Mapping[str | None, int] = {None: 0, "beta": 1, "alpha": 2}


def version_order(name: str) -> tuple[int, int, int, int, str]:
    """Return the key by which versions are sorted, as Kubernetes does: v2, v1, v1beta2, v1alpha1, then others."""
    match = _VERSION.fullmatch(name)
    if match is None:
        return 1, 0, 0, 0, name
    return 0, _STAGES[match[2]], -int(match[1]), -int(match[3] or 0), name


def storage_version_hash(group: str, version: str, kind: str) -> str:
    """Return the hash of the storage version, by which clients see that it changes."""
    digest = hashlib.sha256(f"{group}/{version}/{kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode("ascii")
