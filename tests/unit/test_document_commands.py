"""Every command that README.md and docs/operations show is run by a test, or listed with the reason why not."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from cli.__main__ import build_parser
from tests.testbed import documents
from tests.testbed.documents import DOCUMENTS, NOT_RUN, RUN_BY, commands, split

IN_TEXT = re.compile(r"`(?:sudo )?podlane ([^`]+)`")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
ALTERNATIVES = re.compile(r"\w+(?:\|\w+)+")
CAPITALS = re.compile(r"\b[A-Z]+\b")
PARSER = build_parser()
ALL = [command for document in DOCUMENTS for command in commands(document)]


def test_every_command_is_run_or_listed_with_a_reason() -> None:
    loose = [
        f"{command.document}, {command.heading}: {command.name}"
        for command in ALL
        if (command.document, command.heading) not in RUN_BY and command.name not in NOT_RUN
    ]
    assert not loose, "name the section in RUN_BY, or the command in NOT_RUN, of tests/testbed/documents.py"
    assert len(ALL) > 60


def test_lists_name_what_is_there() -> None:
    assert set(RUN_BY) - {(command.document, command.heading) for command in ALL} == set()
    assert set(NOT_RUN) - {command.name for command in ALL} == set()
    assert all(NOT_RUN.values())
    missing = {
        test
        for tests in RUN_BY.values()
        for test in tests
        if not (documents.ROOT / "tests" / test.partition("::")[0]).exists()
    }
    assert missing == set()


def test_commands_of_several_lines_are_one_command() -> None:
    block = "\n".join(
        (
            "# a comment",
            "echo a \\",
            "  b",
            "",
            "cat <<'END'",
            "it's",
            "END",
            "jq 'select(1)",
            "  | .a' file",
            "tr a b <<<'c'   # why",
        )
    )
    assert list(split(block)) == [
        "echo a \\\n  b",
        "cat <<'END'\nit's\nEND",
        "jq 'select(1)\n  | .a' file",
        "tr a b <<<'c'   # why",
    ]
    assert documents.Command("", "", "tr a b <<<'c'   # why").name == "tr a b <<<'c'"


def in_text() -> Iterator[str]:
    """Yield the arguments of `podlane` in each command that stands in a sentence or a table, not in a block of code."""
    for document in DOCUMENTS:
        text = FENCED.sub("", (documents.ROOT / document).read_text())
        for match in IN_TEXT.finditer(" ".join(text.split())):
            for number in range(match[1].count("|") + 1):
                yield ALTERNATIVES.sub(lambda words, n=number: words[0].split("|")[n], match[1])


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the command that words name, and the words after its name."""
    parser = PARSER
    while words:
        topics = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not topics or words[0] not in topics[0].choices:
            break
        parser, words = topics[0].choices[words[0]], words[1:]
    return parser, words


def refused(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return why `podlane` does not accept arguments, with names for the words in capitals; empty if it does.

    A command that is only named, or only with options, needs no other arguments.
    """
    words = shlex.split(CAPITALS.sub("1", text.replace("[", "").replace("]", "")), comments=True)
    parser, rest = parser_of(words)
    try:
        if rest:
            parser.parse_args(rest)
    except SystemExit as ended:
        error = capsys.readouterr().err
        is_mention = rest[0].startswith("-") and "the following arguments are required" in error
        return error if ended.code and not is_mention else ""
    return "" if rest or parser.prog.count(" ") else f"{text!r} names no command"


def test_commands_in_sentences_are_accepted_by_podlane(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [text for text in in_text() if text != "TOPIC --help"]
    assert len(texts) > 70
    assert {text: why for text in texts if (why := refused(text, capsys))} == {}


@pytest.mark.parametrize(
    "text", ["nod drain node-2", "node drain node-2 --forse", "why red/a", "network trace a b --port x"]
)
def test_wrong_command_in_a_sentence_is_found(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(text, capsys)
