"""The configuration files of a node's daemons: what a join reads of them and sets in them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

DEFAULT_KUBECONFIG = "/etc/podlane/node.kubeconfig"
DEFAULT_BOOTSTRAP_KUBECONFIG = "/etc/podlane/bootstrap.kubeconfig"


VALUE = r"""(?:'(?:[^'\n]|'')*'|"(?:[^"\\\n]|\\.)*"|.*?)"""
"""A value on one line: quoted, or all before a comment."""

PLAIN = re.compile(r"[A-Za-z/][\w./-]*|\d+\.\d+\.\d+\.\d+", re.ASCII)
"""Texts that need no quotes, unless YAML has another meaning for them."""


class BadSettings(Exception):
    """A configuration file that a join cannot change; `str(error)` says why, and what is accepted."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files and sockets that the settings of a node name."""

    kubeconfig: str
    bootstrap_kubeconfig: str
    docker_socket: str
    pause_image: str
    ovs_rundir: str


def read(text: str, file: str) -> dict[str, Any]:
    """Return the settings of a file; empty for an empty file. Raises BadSettings."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "the text"
        raise BadSettings(f"{file}: {where} is not YAML; a mapping of settings is accepted") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadSettings(f"{file}: found {type(document).__name__}; a mapping of settings is accepted")
    return document


def node_files(sdn: Mapping[str, Any], agent: Mapping[str, Any], pause_image: str) -> NodeFiles:
    """Return the files of a node. Raises BadSettings if its daemons have different kubeconfigs."""
    kubeconfigs = {str(settings.get("kubeconfig") or DEFAULT_KUBECONFIG) for settings in (sdn, agent)}
    if len(kubeconfigs) > 1:
        found = " and ".join(sorted(kubeconfigs))
        raise BadSettings(f"sdn.yaml and node-agent.yaml: found the kubeconfigs {found}; one file for both is accepted")
    return NodeFiles(
        kubeconfig=kubeconfigs.pop(),
        bootstrap_kubeconfig=str(agent.get("bootstrapKubeconfig") or DEFAULT_BOOTSTRAP_KUBECONFIG),
        docker_socket=str(agent.get("dockerSocket") or "/var/run/docker.sock"),
        pause_image=str(agent.get("pauseImage") or pause_image),
        ovs_rundir=str(sdn.get("ovsRundir") or "/var/run/openvswitch"),
    )


def with_settings(text: str, values: Mapping[str, str], file: str) -> str:
    """Return the text of a configuration file with these settings. All other lines stay. Raises BadSettings."""
    expected = {**read(text, file), **values}
    for key, value in values.items():
        line = f"{key}: {_scalar(value)}"
        text, count = re.subn(
            rf"^{re.escape(key)}:(?!\S)[ \t]*{VALUE}([ \t]+#.*)?[ \t]*$",
            lambda match, line=line: line + (match[1] or ""),  # type: ignore[misc]
            text,
            count=1,
            flags=re.MULTILINE,
        )
        if not count:
            text = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
    try:
        done = read(text, file)
    except BadSettings:
        done = {}
    if done != expected:
        lines = ", ".join(f"{key}: {_scalar(value)}" for key, value in values.items())
        raise BadSettings(f"{file}: its form is not one setting per line; please set {lines}, then join again")
    return text


def _scalar(value: str) -> str:
    """Return a text as YAML, in quotes where it would be something else without them, such as a number."""
    is_plain = PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
    return value if is_plain else json.dumps(value, ensure_ascii=False)
