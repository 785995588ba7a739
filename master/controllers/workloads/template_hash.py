"""A short name for the template of pods. Pure."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from master.kinds.workload import PodTemplateSpec
from master.writing.writes import NAME_LETTERS

HASH_LABEL = "pod-template-hash"
HASH_LENGTH = 10


def bare(template: PodTemplateSpec) -> PodTemplateSpec:
    """The template without the label that names it."""
    labels = {key: value for key, value in template.metadata.labels.items() if key != HASH_LABEL}
    return replace(template, metadata=replace(template.metadata, labels=labels))


def template_hash(template: PodTemplateSpec, collisions: int) -> str:
    """The same whenever the template is the same; `collisions` tells apart what has the same name by chance."""
    content = msgspec.json.encode((bare(template), collisions), order="deterministic")
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
    letters = []
    for _ in range(HASH_LENGTH):
        number, digit = divmod(number, len(NAME_LETTERS))
        letters.append(NAME_LETTERS[digit])
    return "".join(letters)
