"""`podlane scc`: explains which security context constraints admit a pod.

The master answers: each SCC is tried with a dry run that requires it, so the explanation is the decision of a create.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from api.client.client import ApiError, Client
from api.codec import yaml
from api.meta.names import dns_label_error
from cli import kubeconfig, object_names
from cli.command import FAILED, UsageError, add_command, read_input
from cli.project import check_projects
from reconcile.terminal import table

REQUIRED_SCC_ANNOTATION, SCC_ANNOTATION = "openshift.io/required-scc", "openshift.io/scc"
SUBJECT_ANNOTATION = "security.openshift.io/validated-scc-subject-type"
NO_SCC = "unable to validate against any security context constraint"
SCC_PATH = "/apis/security.openshift.io/v1/securitycontextconstraints"

Document = dict[str, Any]


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands under `podlane scc`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    explain = add_command(
        commands, "explain", "show which constraints admit a pod, and why the others do not", _explain
    )
    explain.add_argument("file", metavar="FILE", help="a Pod as YAML or JSON; - is standard input")
    explain.add_argument(
        "--as", dest="user", metavar="USER", type=object_names.user, help="user who would create the pod"
    )
    explain.add_argument(
        "--as-group",
        dest="groups",
        metavar="GROUP",
        type=object_names.user,
        action="append",
        default=[],
        help="group of that user (repeatable)",
    )
    explain.add_argument(
        "-n", "--namespace", metavar="NAMESPACE", type=object_names.project, help="namespace of the pod (default)"
    )
    kubeconfig.add_argument(explain)


def _explain(arguments: argparse.Namespace) -> int:
    if arguments.groups and not arguments.user:
        raise UsageError("--as-group needs --as: a group is that of a user")
    text = read_input(arguments.file)
    pod = _read_pod(arguments.file, text)
    namespace = arguments.namespace or pod["metadata"].get("namespace") or "default"
    pod["metadata"] = {**pod["metadata"], "namespace": namespace}
    return 0 if asyncio.run(_print_explanation(arguments, pod)) else FAILED


def _read_pod(name: str, text: str) -> Document:
    """Return the pod in a file. Raises UsageError."""
    document = yaml.parse_one(text)
    if document.errors:
        raise UsageError(f"{name}: {document.errors[0]}")
    pod = document.value
    if not isinstance(pod, dict) or pod.get("kind") != "Pod":
        kind = pod.get("kind") if isinstance(pod, dict) else type(pod).__name__
        raise UsageError(f"{name} has a {kind}; a Pod is accepted")
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, annotations = metadata.get("namespace") or "default", metadata.get("annotations") or {}
    if not isinstance(namespace, str) or dns_label_error(namespace):
        raise UsageError(f"{name}: metadata.namespace is {namespace!r}; the name of a project is accepted")
    if not isinstance(annotations, dict):
        raise UsageError(f"{name}: metadata.annotations is a {type(annotations).__name__}; a mapping is accepted")
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


async def _print_explanation(arguments: argparse.Namespace, pod: Document) -> bool:
    """Print what becomes of the pod with each SCC. Return whether it is admitted."""
    headers = [("Impersonate-User", arguments.user)] if arguments.user else []
    headers += [("Impersonate-Group", group) for group in arguments.groups]
    async with kubeconfig.connect(kubeconfig.load(arguments.kubeconfig)) as client:
        await check_projects(client, [pod["metadata"]["namespace"]])
        names = await _scc_names(client)
        outcome = await _try(client, pod, headers)
        if isinstance(outcome, str) and not outcome.startswith(NO_SCC):
            # Something else refuses the pod, whatever SCC it has.
            print(outcome)
            return False
        rows = []
        for name in names:
            annotations = {**pod["metadata"]["annotations"], REQUIRED_SCC_ANNOTATION: name}
            required = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
            results = _results(name, outcome, await _try(client, required, headers))
            rows += [(name if number == 0 else "", result) for number, result in enumerate(results)]
    print(table(("SCC", "RESULT"), rows))
    print()
    if isinstance(outcome, str):
        print(outcome)
        return False
    metadata = outcome["metadata"]["annotations"]
    subject = {"serviceaccount": "the pod's service account", "user": "the user"}
    print(
        f"{metadata[SCC_ANNOTATION]} admits the pod: {subject[metadata[SUBJECT_ANNOTATION]]} may use it. It fills in:"
    )
    changes = tuple(_filled_in("spec", pod.get("spec"), outcome["spec"]))
    print("\n".join(f"  {change}" for change in changes) or "  nothing")
    return True


async def _scc_names(client: Client) -> Sequence[str]:
    """Return the names of all SCCs, those of the highest priority first."""
    found = msgspec.json.decode(await client.request("GET", SCC_PATH))["items"]
    found.sort(key=lambda scc: (-(scc["priority"] or 0), scc["metadata"]["name"]))
    return [scc["metadata"]["name"] for scc in found]


async def _try(client: Client, pod: Document, headers: list[tuple[str, str]]) -> Document | str:
    """Return the pod as it would be created, or why it would not."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"} | {"generateName": "explained-"}
    body = msgspec.json.encode({**pod, "metadata": metadata})
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    try:
        answer = await client.request("POST", path, body, query={"dryRun": "All"}, headers=headers)
    except ApiError as error:
        # The messages have the name of the pod, which nobody has given.
        _, invalid, problem = error.status.message.partition(" is invalid: ")
        if invalid:
            return f"the pod is invalid: {problem}"
        return error.status.message.partition(" is forbidden: ")[2] or error.status.message
    created: Document = msgspec.json.decode(answer)
    return created


_NEXT_VIOLATION = re.compile(r", (?=provider \S+: |spec\.|pod\.(?:spec|metadata))")


def _results(name: str, outcome: Document | str, trial: Document | str) -> Sequence[str]:
    """Return what becomes of the pod with one SCC, one line for each reason."""
    if isinstance(trial, str):
        reasons, _, _ = trial.partition("; the least permissive SCC")
        reasons = reasons.removeprefix(f"{NO_SCC}: ")
        if reasons.endswith("not usable by user or serviceaccount"):
            return ("neither the user nor the service account of the pod may use it",)
        if reasons.startswith("[") and reasons.endswith("]"):
            reasons = reasons[1:-1]
        return [each.removeprefix(f"provider {name}: ") for each in _NEXT_VIOLATION.split(reasons)]
    if not isinstance(outcome, str) and outcome["metadata"]["annotations"][SCC_ANNOTATION] == name:
        return ("chosen",)
    return ("admits the pod, but comes later: by priority, then the more restrictive one, then by name",)


def _filled_in(path: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the security settings of the created pod that the file does not have."""
    if isinstance(after, dict):
        old = before if isinstance(before, dict) else {}
        for key, value in after.items():
            yield from _filled_in(f"{path}.{key}", old.get(key), value)
    elif isinstance(after, list) and path.rpartition(".")[2] in ("containers", "initContainers"):
        old_items = before if isinstance(before, list) else []
        for index, value in enumerate(after):
            old_item = old_items[index] if index < len(old_items) else None
            yield from _filled_in(f"{path}[{index}]", old_item, value)
    elif before != after and ".securityContext." in path:
        yield f"{path}: {msgspec.json.encode(after).decode()}"
