"""One YAML file per daemon, every key also a flag.

A daemon declares its settings as one frozen msgspec struct; `Meta(description=...)` of a field is its help text. Keys
are camelCase in the file and kebab-case as flags. A flag overrides the file, and the file overrides the default.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import yaml

S = TypeVar("S", bound=msgspec.Struct)


class InvalidConfig(Exception):
    """Invalid settings. The text lists each problem: its key, the value found, what is accepted."""


def _no_problems(_: object) -> Iterable[str]:
    return ()


def load(
    kind: type[S],
    prog: str,
    default_file: str,
    argv: list[str] | None = None,
    problems: Callable[[S], Iterable[str]] = _no_problems,
) -> S:
    """Read the settings of a daemon from its file and its flags.

    A missing `default_file` is no error; a missing `--config FILE` is one. `--check` prints the effective settings and
    exits with 0. Invalid settings exit with 2 and print one line for each problem. `problems(settings)` returns those
    beyond the types of the settings.
    """
    parser = build_parser(kind, prog, default_file)
    flags = vars(parser.parse_args(argv))
    config = flags.pop("config")
    check = flags.pop("check")
    given_flags = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = merge(kind, _read(config, default_file), given_flags)
    except InvalidConfig as error:
        _refuse(prog, str(error))
    if found := "\n".join(problems(settings)):
        _refuse(prog, found)
    if check:
        sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False))
        raise SystemExit(0)
    return settings


def merge(kind: type[S], document: dict[str, Any], flags: dict[str, str]) -> S:
    """Merge defaults, the document of a file and flags (camelCase name → text); the later ones override."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    problems = [_unknown(key, known) for key in document if key not in known]
    if problems:
        raise InvalidConfig("\n".join(problems))
    merged = {**document, **{key: _scalar(text) for key, text in flags.items()}}
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig("\n".join(_mismatches(kind, merged)) or str(error)) from None


def _mismatches(kind: type[msgspec.Struct], document: dict[str, Any]) -> list[str]:
    problems = []
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in document:
            if field.required:
                problems.append(f"{field.encode_name}: is missing")
            continue
        try:
            msgspec.convert(document[field.encode_name], field.type)
        except msgspec.ValidationError as error:
            problems.append(f"{field.encode_name}: found {document[field.encode_name]!r}; {error}")
    return problems


def _unknown(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else f"; known keys are {', '.join(sorted(known))}"
    return f"{key}: is not a setting{hint}"


def _scalar(text: str) -> Any:
    return yaml.safe_load(text) if text else text


def _read(config: str | None, default_file: str) -> dict[str, Any]:
    path = Path(config or default_file)
    if config is None and not path.exists():
        return {}
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidConfig(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidConfig(f"{path}: found a {type(document).__name__}; a mapping of settings is accepted")
    return document


def build_parser(kind: type[msgspec.Struct], prog: str, default_file: str) -> argparse.ArgumentParser:
    """Return the parser of a daemon's flags."""
    parser = argparse.ArgumentParser(prog=prog, description=(kind.__doc__ or "").strip(), allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{prog} {version('podlane')}")
    parser.add_argument("--config", metavar="FILE", help=f"YAML file with the settings below ({default_file})")
    parser.add_argument("--check", action="store_true", help="print the effective settings and exit")
    for field in msgspec.structs.fields(kind):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.encode_name,
            metavar="VALUE",
            help=f"{_description(field.type)} ({'required' if field.required else repr(field.default)})".replace(
                "%", "%%"
            ),
        )
    return parser


def _description(annotation: Any) -> str:
    return next((meta.description or "" for meta in getattr(annotation, "__metadata__", ())), "")


def _refuse(prog: str, text: str) -> NoReturn:
    for line in text.splitlines():
        sys.stderr.write(f"{prog}: {line}\n")
    raise SystemExit(2)
