"""The template of requested projects: parsing, validation, and the documents for one request. Pure.

Source: the project request template of OpenShift. A `Template` of template.openshift.io/v1 has the objects in
`objects`, a `List` of v1 in `items`. `${NAME}` in a text stands for the value of a parameter.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.core.config import Secret
from api.meta.types import StatusDetails
from master.errors import StatusError
from master.registry import decoding, strategy
from master.request_info import RequestInfo
from master.resources.namespaces import PROJECTS
from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from reconcile.config_schema import kind_of, problem, unknown_field

Json = Any

PROJECT_NAME, DISPLAY_NAME, DESCRIPTION = "PROJECT_NAME", "PROJECT_DISPLAYNAME", "PROJECT_DESCRIPTION"
ADMIN_USER, REQUESTING_USER = "PROJECT_ADMIN_USER", "PROJECT_REQUESTING_USER"
REQUEST_PARAMETERS = (PROJECT_NAME, DISPLAY_NAME, DESCRIPTION, ADMIN_USER, REQUESTING_USER)
"""Parameters whose values come from the request."""

MAX_OBJECTS = 100

_REFERENCE = re.compile(r"\$\{\{([A-Za-z0-9_]+)\}\}|\$\{([A-Za-z0-9_]+)\}")
_WHOLE_VALUE = re.compile(r"\$\{\{([A-Za-z0-9_]+)\}\}")
_VERSION_AND_LISTS = {("template.openshift.io/v1", "Template"): "objects", ("v1", "List"): "items"}

_KINDS = {(resource.type.API_VERSION, resource.kind): resource for resource in SERVED}


class BadTemplate(ValueError):
    """A template that cannot be used. `problems` are all its errors, one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class TemplateObject:
    """An object of a template, and its path in the file. References are not replaced yet."""

    path: str
    resource: AnyResource
    document: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ProjectTemplate:
    """A template: the Project, the further objects, and the values of parameters that requests do not give."""

    project: TemplateObject
    objects: tuple[TemplateObject, ...]
    parameters: Mapping[str, str]

    def expand(self, template_object: TemplateObject, values: Mapping[str, str]) -> dict[str, Json]:
        """Return the document of an object. `values` are those of REQUEST_PARAMETERS."""
        document: dict[str, Json] = _expanded(template_object.document, {**self.parameters, **values}, self.parameters)
        return document


def _expanded(value: Json, values: Mapping[str, str], own: Mapping[str, str]) -> Json:
    """Return a value with the references replaced, once: a value that contains a reference stays as it is.

    `${{NAME}}` inserts JSON, therefore only of the template's `own` parameters and never of a request.
    """
    if isinstance(value, dict):
        return {_text(key, values): _expanded(entry, values, own) for key, entry in value.items()}
    if isinstance(value, list):
        return [_expanded(entry, values, own) for entry in value]
    if not isinstance(value, str):
        return value
    whole = _WHOLE_VALUE.fullmatch(value)
    if whole is not None and whole[1] in own:
        return json.loads(own[whole[1]])
    return _text(value, values)


def _text(text: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: values.get(match[2] or "", match[0]), text)


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse_template(document: Json) -> ProjectTemplate:
    """Return the template in a document. Raises BadTemplate with all its errors."""
    problems: list[str] = []
    if not isinstance(document, dict):
        raise BadTemplate([f"the document: found {kind_of(document)}; a Template or a List is accepted"])
    key = _VERSION_AND_LISTS.get((str(document.get("apiVersion")), str(document.get("kind"))))
    if key is None:
        accepted = " and ".join(f"{kind} of {version}" for version, kind in _VERSION_AND_LISTS)
        raise BadTemplate([problem("kind", _version_and_kind(document), f"{accepted} are accepted")])
    known = {"apiVersion", "kind", "metadata", "message", "labels", "parameters", key}
    problems += (unknown_field("", name, known) for name in document if name not in known)
    parameters = dict(_parameters(document.get("parameters"), problems))
    entries = document.get(key)
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_OBJECTS:
        shown = f"a list of {len(entries)}" if isinstance(entries, list) else kind_of(entries)
        raise BadTemplate([*problems, f"{key}: found {shown}; a list of 1 to {MAX_OBJECTS} objects is accepted"])
    objects = [parsed for index, entry in enumerate(entries) if (parsed := _object(f"{key}[{index}]", entry, problems))]
    projects = [each for each in objects if each.resource is PROJECTS]
    if len(projects) != 1:
        problems.append(f"{key}: found {len(projects)} Projects; exactly one is accepted")
    if problems:
        raise BadTemplate(problems)
    template = ProjectTemplate(
        projects[0], tuple(each for each in objects if each.resource is not PROJECTS), parameters
    )
    problems += _example_problems(template)
    if problems:
        raise BadTemplate(problems)
    return template


def _version_and_kind(document: Mapping[str, Json]) -> str:
    return f"{document.get('apiVersion')} {document.get('kind')}"


def _parameters(entries: Json, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of the parameters that requests do not give."""
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        path = f"parameters[{index}]"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            problems.append(problem(f"{path}.name", name, "letters, digits and `_` are accepted"))
        elif entry.get("generate") or entry.get("from"):
            problems.append(problem(f"{path}.generate", entry.get("generate"), "a value is accepted instead"))
        elif name not in REQUEST_PARAMETERS:
            value = entry.get("value")
            if isinstance(value, str):
                yield name, value
            else:
                # A parameter may be a password: its value is not shown.
                accepted = f"a text is accepted; requests give only {', '.join(REQUEST_PARAMETERS)}"
                problems.append(f"{path}.value: found {kind_of(value)}; {accepted}")
    if entries is not None and not isinstance(entries, list):
        problems.append(f"parameters: found {kind_of(entries)}; a list is accepted")


def _object(path: str, entry: Json, problems: list[str]) -> TemplateObject | None:
    meta = entry.get("metadata") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(meta, dict):
        place, value = (f"{path}.metadata", meta) if isinstance(entry, dict) else (path, entry)
        problems.append(f"{place}: found {kind_of(value)}; an object with metadata is accepted")
        return None
    version, kind = entry.get("apiVersion"), entry.get("kind")
    resource = _KINDS.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if resource is None or "create" not in resource.verbs:
        problems.append(problem(f"{path}.kind", _version_and_kind(entry), "a kind that can be created is accepted"))
        return None
    if resource is PROJECTS:
        if meta.get("name") != f"${{{PROJECT_NAME}}}":
            problems.append(problem(f"{path}.metadata.name", meta.get("name"), f"${{{PROJECT_NAME}}} is accepted"))
    elif not resource.namespaced:
        problems.append(problem(f"{path}.kind", kind, "a Project and objects in it are accepted"))
    elif meta.get("namespace") not in (None, f"${{{PROJECT_NAME}}}"):
        accepted = f"${{{PROJECT_NAME}}} is accepted, and the default"
        problems.append(problem(f"{path}.metadata.namespace", meta["namespace"], accepted))
    if not meta.get("name"):
        problems.append(problem(f"{path}.metadata.name", meta.get("name"), "a name is accepted"))
    return TemplateObject(path, resource, entry)


EXAMPLE = {
    PROJECT_NAME: "example",
    DISPLAY_NAME: "Example",
    DESCRIPTION: "An example",
    ADMIN_USER: "user",
    REQUESTING_USER: "user",
}
"""The request with which a template is validated."""

_EXAMPLE_TIME = datetime.datetime.fromtimestamp(0, datetime.UTC)


def _example_problems(template: ProjectTemplate) -> Iterator[str]:
    """Yield the errors of the objects, as they are for an example of a request."""
    for each in (template.project, *template.objects):
        try:
            document = template.expand(each, EXAMPLE)
        except ValueError as error:
            yield f"{each.path}: found a value for `${{{{NAME}}}}` that is no JSON ({error}); JSON is accepted"
            continue
        try:
            obj = decode(each, document, EXAMPLE[PROJECT_NAME])
            strategy.validate(each.resource, strategy.prepare_create(each.resource, obj, "", _EXAMPLE_TIME))
        except StatusError as error:
            yield from _problems(each, error)


def decode(template_object: TemplateObject, document: Json, project: str) -> Any:
    """Return the object of an expanded document, with defaults. Raises StatusError."""
    resource = template_object.resource
    info = RequestInfo(resource, project if resource.namespaced else "")
    return decoding.decode_object(info, document, "Strict").object


def _problems(template_object: TemplateObject, error: StatusError) -> Iterator[str]:
    details: StatusDetails | None = error.status.details
    causes = details.causes if details is not None else ()
    for cause in causes:
        message = cause.message
        if template_object.resource.kind == Secret.KIND:
            # The message quotes what was found.
            message = f"found a value that is not shown; {message.rpartition(': ')[2]}"
        yield f"{template_object.path}.{cause.field}: {message}"
    if not causes:
        yield f"{template_object.path}: {error.status.message}"


def values_of(name: str, display_name: str, description: str, user: str) -> Mapping[str, str]:
    """Return the values of REQUEST_PARAMETERS for a request."""
    return {
        PROJECT_NAME: name,
        DISPLAY_NAME: display_name,
        DESCRIPTION: description,
        ADMIN_USER: user,
        REQUESTING_USER: user,
    }
