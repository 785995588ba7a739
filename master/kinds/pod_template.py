"""PodTemplate: what pods can be made from, kept by itself. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.schema import FieldError
from api.meta.types import Object
from api.validation import pod
from api.validation.registry import KindRules
from master.kinds.kind import NAME, Column, Kind
from master.kinds.workload import PodTemplateSpec, defaulted_template


class PodTemplate(Object, frozen=True):
    """What pods can be made from. Nobody makes pods of it by itself."""

    API_VERSION = "v1"
    KIND = "PodTemplate"

    template: PodTemplateSpec = PodTemplateSpec()


def _check(item: PodTemplate) -> Iterator[FieldError]:
    for problem in pod.check_pod(Pod(metadata=item.template.metadata, spec=item.template.spec)):
        yield problem._replace(path=f"template.{problem.path}")


def _cells(item: PodTemplate, now: datetime.datetime) -> tuple[object, ...]:
    del now
    containers = item.template.spec.containers
    labels = ",".join(f"{key}={value}" for key, value in sorted(item.template.metadata.labels.items()))
    return (
        item.metadata.name,
        ",".join(one.name for one in containers),
        ",".join(one.image for one in containers),
        labels or "<none>",
    )


POD_TEMPLATE = Kind(
    type=PodTemplate,
    plural="podtemplates",
    singular="podtemplate",
    namespaced=True,
    columns=(
        NAME,
        Column("Containers", "The names of its containers."),
        Column("Images", "The images of its containers."),
        Column("Pod Labels", "The labels that the pods would have."),
    ),
    cells=_cells,
    spec=lambda item: item.template,
    own_rules=KindRules(
        default=lambda item: replace(item, template=defaulted_template(item.template)),
        check=_check,
    ),
)
