"""Where the environment of a container comes from: the shapes. Pure.

Source: facts/node.md 7.
"""

from __future__ import annotations

from api.value import Json, ObjectFieldSelector, ResourceFieldSelector, Value


class KeySelector(Value, frozen=True):
    """One key of a ConfigMap or Secret of the pod's namespace; what is optional may be missing."""

    key: str
    name: str = ""
    optional: bool | None = None


class EnvSource(Value, frozen=True):
    """A whole ConfigMap or Secret of the pod's namespace."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(Value, frozen=True):
    """Every key becomes a variable, its name begun with `prefix`."""

    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class EnvVarSource(Value, frozen=True):
    """Exactly one is given."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: Json = None


class EnvVar(Value, frozen=True):
    """`value` may use, as `$(NAME)`, variables that were declared before."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


def is_name(text: str) -> bool:
    """Whether a variable may be called so."""
    return bool(text) and "=" not in text and text.isascii() and text.isprintable()
