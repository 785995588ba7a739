"""One YAML file per daemon, every key also a flag.

A daemon declares its settings as one frozen msgspec struct; `Meta(description=...)` of a field is its help text. Keys
are camelCase in the file and kebab-case as flags. A flag overrides the file, and the file overrides the default.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import yaml

from reconcile import config_schema
from reconcile.config_document import BadDocument, parse_document, read_document
from reconcile.config_schema import MAX_PROBLEMS

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
    file_problems: Callable[[S], Iterable[str]] = _no_problems,
) -> S:
    """Read the settings of a daemon from its file and its flags.

    A missing `default_file` is no error; a missing `--config FILE` is one. `--check` prints the effective settings and
    exits with 0. Invalid settings exit with 2 and print one line for each problem. `problems(settings)` returns those
    beyond the types of the settings. `file_problems(settings)` returns those of files that the settings name and that
    may still be made when the daemon starts; they are judged only with `--check`.
    """
    parser = build_parser(kind, prog, default_file)
    check = parser.parse_args(argv).check
    try:
        settings = read(
            kind, prog, default_file, argv, problems=problems, file_problems=file_problems if check else _no_problems
        )
    except InvalidConfig as error:
        _refuse(prog, str(error).splitlines())
    if check:
        sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False))
        raise SystemExit(0)
    return settings


def read(
    kind: type[S],
    prog: str,
    default_file: str,
    argv: list[str] | None = None,
    *,
    problems: Callable[[S], Iterable[str]] = _no_problems,
    file_problems: Callable[[S], Iterable[str]] = _no_problems,
) -> S:
    """Read and judge the settings as they are now, with the flags of the command. Raises InvalidConfig."""
    flags = vars(build_parser(kind, prog, default_file).parse_args(argv))
    config = flags.pop("config")
    del flags["check"]
    settings = merge(
        kind, _read(config, default_file), {name: value for name, value in flags.items() if value is not None}
    )
    if lines := [*problems(settings), *file_problems(settings)]:
        raise InvalidConfig("\n".join(" ".join(line.splitlines()) for line in lines))
    return settings


def merge(kind: type[S], document: dict[str, Any], flags: dict[str, str]) -> S:
    """Merge defaults, the document of a file and flags (camelCase name → text); the later ones override.

    Raises InvalidConfig.
    """
    texts = {field.encode_name for field in msgspec.structs.fields(kind) if config_schema.is_text(field.type)}
    problems = []
    merged = dict(document)
    for key, text in flags.items():
        try:
            merged[key] = text if key in texts or not text else parse_document(text)
        except BadDocument as error:
            problems.append(f"{key}: {error}")
            merged.pop(key, None)
    problems += itertools.islice(config_schema.mismatches(kind, merged, noun="setting"), MAX_PROBLEMS)
    if problems:
        raise InvalidConfig("\n".join(problems))
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(str(error)) from None


def _read(config: str | None, default_file: str) -> dict[str, Any]:
    path = Path(config or default_file)
    if config is None and not path.exists():
        return {}
    try:
        document = read_document(path)
    except BadDocument as error:
        raise InvalidConfig(str(error)) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidConfig(f"{path}: found {config_schema.kind_of(document)}; a mapping of settings is accepted")
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
    return next((meta.description for meta in getattr(annotation, "__metadata__", ()) if meta.description), "")


def _refuse(prog: str, lines: Iterable[str]) -> NoReturn:
    for line in lines:
        sys.stderr.write(f"{prog}: {''.join(c if c.isprintable() else ' ' for c in line)}\n")
    raise SystemExit(2)
