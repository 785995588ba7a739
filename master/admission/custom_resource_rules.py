"""Rules in CEL of custom resources: a definition's are checked, and a version's are laid on its objects. Pure.

The CEL worker does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from api.meta.schema import FieldError
from master import errors
from master.admission.cel_calls import CELCall, source_of
from master.admission.external_calls import ExternalResults
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.cel.messages import CompiledRules, CompileRules, EvaluateRules
from master.cel.rules import compile_errors, encode_rules, failures_as_errors, rule_errors
from master.resources.custom_resource_definitions import CustomResourceDefinition
from master.resources.resource import SCALE, AnyResource
from master.storage.interface import Transaction


def definition_rule_errors(
    schemas: Iterable[tuple[str, Mapping[str, Any]]], external: ExternalResults, source: str = ""
) -> tuple[FieldError, ...]:
    """Return the errors of the rules of a definition. Raises CallsPending.

    `schemas` are (path of the schema, schema) of the versions whose schema is new or changed. Rules are compiled only
    if they have no other errors, all of them in one round: a definition of 500 KB is decided again after each.
    """
    found: list[FieldError] = []
    asked: list[tuple[str, CELCall]] = []
    for path, schema in schemas:
        own = list(rule_errors(schema, path))
        found += own
        if not own and (rules := encode_rules(schema)):
            asked.append((path, CELCall(CompileRules(rules), source)))
    if found:
        return tuple(found)
    answers = external.results_of([call for _, call in asked])
    for (path, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, CompiledRules):
            found += compile_errors(answer.errors, path)
        else:
            found.append(FieldError(path, "", f"compilation failed: {answer.reason}"))
    return tuple(found)


def object_rule_errors(
    rules: bytes, obj: bytes, old: bytes, external: ExternalResults, source: str = ""
) -> tuple[Sequence[FieldError], Sequence[str]]:
    """Return the errors of an object by the rules of its version, and warnings. Raises CallsPending.

    `rules` are those of `encode_rules`. `obj` and `old` are JSON as they are validated: pruned, with defaults, in the
    version of the request; `old` is empty for a create. Call it only for an object without a Required, TooLong,
    TooMany, TypeInvalid or NotSupported error.
    """
    if not rules:
        return (), ()
    (answer,) = external.results_of((CELCall(EvaluateRules(rules, obj, old), source),))
    return failures_as_errors(answer)


class CustomResourceRules(AdmissionPlugin):
    """Rejects definitions whose rules do not compile, and custom resources that break the rules of their version.

    It sees objects that are valid by their schema. Rules see the object that is stored: with the old spec if only the
    status is written, and with another number of replicas if it is scaled.
    """

    sees_actions = True

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.external is None or request.operation not in (Operation.CREATE, Operation.UPDATE):
            return
        if isinstance(obj, CustomResourceDefinition) and not request.subresource:
            self._check_definition(request, obj, request.external)
        elif request.resource.documents is not None and (rules := request.resource.documents.encoded_rules()):
            new = _stored_form(request, obj)
            if request.old is None or not request.resource.documents.is_released(new, request.old):
                self._check_object(request, new, rules, request.external)

    def _check_definition(
        self, request: AdmissionRequest, crd: CustomResourceDefinition, external: ExternalResults
    ) -> None:
        known = {} if request.old is None else {version.name: version.schema for version in request.old.spec.versions}
        changed = [
            (f"spec.versions[{index}].schema.openAPIV3Schema", version.schema.open_apiv3_schema)
            for index, version in enumerate(crd.spec.versions)
            if version.schema is not None and version.schema != known.get(version.name)
        ]
        if problems := definition_rule_errors(changed, external, source_of(request, crd)):
            raise errors.invalid(request.resource, crd.metadata.name, problems)

    def _check_object(self, request: AdmissionRequest, obj: Any, rules: bytes, external: ExternalResults) -> None:
        old = b"" if request.old is None else msgspec.json.encode(request.old)
        problems, warnings = object_rule_errors(rules, msgspec.json.encode(obj), old, external, source_of(request, obj))
        for warning in warnings:
            request.warn(warning)
        if problems:
            raise errors.invalid(request.resource, obj.metadata.name, problems)


def _stored_form(request: AdmissionRequest, obj: Any) -> Any:
    """Return a custom resource as the write stores it, if only a part of it is written."""
    resource: AnyResource = request.resource
    if request.subresource == SCALE and resource.scale is not None:
        return resource.scale.with_replicas(obj, request.body.spec.replicas)
    part = resource.subresource(request.subresource) if request.subresource else None
    if part is not None and part.replace is not None and request.old is not None:
        return part.replace(obj, request.old)[0]
    return obj
