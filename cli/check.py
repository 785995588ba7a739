"""`podlane check`: judges manifests without a master, each document on its own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from api.codec import manifest
from cli.command import NOT_JUDGED, InputError, read_input

_API_VERSION = re.compile(r"(?:[a-z0-9][a-z0-9.-]*/)?v[a-z0-9]+")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane check`."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="YAML or JSON; - is standard input")


def check(arguments: argparse.Namespace) -> int:
    """Print the judgement of each document. Return the exit code: 1 if one is rejected, else 3 if one is not judged."""
    codes = set()
    for name in arguments.files:
        try:
            for code, text in judgements(name, read_input(name)):
                codes.add(code)
                print(text)
        except InputError as error:
            codes.add(1)
            print(error)
    return min(codes - {0}, default=0)


def judgements(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield for each document of a manifest its exit code and what is said of it."""
    documents = manifest.parse_manifest(text)
    if not documents:
        yield 1, f"{name}: has no document; YAML or JSON is accepted"
    for document in documents:
        where = f"{name} document {document.number}"
        api_version, kind = document.unknown_kind
        if _API_VERSION.fullmatch(api_version) and _KIND.fullmatch(kind):
            how = f"kubectl apply --dry-run=server -f {name}"
            yield NOT_JUDGED, f"{where}: not judged, {api_version} {kind} needs a master (with one: {how})"
        elif document.errors:
            yield 1, manifest.format_errors(where, document.errors)
        else:
            yield 0, "\n".join([f"{where}: accepted", *(f"  warning: {warning}" for warning in document.warnings)])
