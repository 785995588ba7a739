"""Every command that README.md and docs/operations show is run by a test, or listed with the reason why not."""

from __future__ import annotations

from tests.testbed import documents
from tests.testbed.documents import DOCUMENTS, NOT_RUN, RUN_BY, commands, split

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
