"""The Pod Security policy of a namespace, in its labels: parsing and validation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from api.meta.schema import FieldError, quoted
from master.admission.pod_security.checks import LATEST, LEVELS, PRIVILEGED, RESTRICTED

PREFIX = "pod-security.kubernetes.io/"
ENFORCE, AUDIT, WARN = "enforce", "audit", "warn"
MODES = (ENFORCE, AUDIT, WARN)

_VERSION = re.compile(r"v1\.(0|[1-9][0-9]{0,3})", re.ASCII)


class LevelVersion(NamedTuple):
    """A level of a version. The text of it in messages is `baseline:v1.30` or `baseline:latest`."""

    level: str = PRIVILEGED
    version: int = LATEST

    def __str__(self) -> str:
        return f"{self.level}:{'latest' if self.version == LATEST else f'v1.{self.version}'}"


UNRESTRICTED = LevelVersion()


@dataclass(frozen=True, slots=True)
class Policy:
    """What a namespace rejects, what it reports in the audit log, and of what it warns."""

    enforce: LevelVersion = UNRESTRICTED
    audit: LevelVersion = UNRESTRICTED
    warn: LevelVersion = UNRESTRICTED


def parse_policy(labels: Mapping[str, str]) -> Policy:
    """Return the policy of a namespace.

    An invalid level of `enforce` counts as restricted, one of another mode as privileged; an invalid version is the
    latest one. Without a label for warnings, they follow a stricter level that is enforced.
    """
    enforce = _level_version(labels, ENFORCE, RESTRICTED)
    audit, warn = _level_version(labels, AUDIT, PRIVILEGED), _level_version(labels, WARN, PRIVILEGED)
    if f"{PREFIX}{WARN}" not in labels and LEVELS.index(enforce.level) > LEVELS.index(warn.level):
        warn = enforce
    return Policy(enforce, audit, warn)


def _level_version(labels: Mapping[str, str], mode: str, if_invalid: str) -> LevelVersion:
    level, version = labels.get(f"{PREFIX}{mode}", PRIVILEGED), labels.get(f"{PREFIX}{mode}-version", "latest")
    match = _VERSION.fullmatch(version)
    return LevelVersion(level if level in LEVELS else if_invalid, int(match[1]) if match else LATEST)


def label_errors(labels: Mapping[str, str], old: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield the errors of the labels of a namespace that are new or changed."""
    for mode in MODES:
        key = f"{PREFIX}{mode}"
        level, version = labels.get(key), labels.get(f"{key}-version")
        if level is not None and level not in LEVELS and level != old.get(key):
            yield FieldError(f"metadata.labels[{key}]", quoted(level), f"must be one of {', '.join(LEVELS)}")
        is_new = version is not None and version != old.get(f"{key}-version")
        if version is not None and is_new and version != "latest" and not _VERSION.fullmatch(version):
            reason = 'must be "latest" or "v1.x"'
            yield FieldError(f"metadata.labels[{key}-version]", quoted(version), reason)
