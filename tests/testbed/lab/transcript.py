"""Transcripts of a terminal: commands and their expected output, as plain text in the folder `transcripts`.

    ## a section: its commands run in sequence in a new project
    ; a remark
    $ kubectl create configmap c --from-literal=a=1
    configmap/c created
    $ kubectl apply -f -
    < a line for the standard input
    ! a line of the standard error
    = 1

`= N` is the exit code, by default 0. The whole output is compared; a run of spaces counts as one. `...` stands for any
text within a line, and alone on a line for any lines. PROJECT is the name of the section's project. `NAME=value` before
the command is set in its environment. `$until` repeats the command until its output is the expected one. `$start` runs
it together with the following commands. `$ended` ends it as soon as its output is the expected one. `@1.31+` or
`@1.30-` before a line restricts it to kubectl of that version and newer, or older.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.testbed.wait import rest

SECONDS = 30.0
PAUSE_SECONDS = 0.05

Version = tuple[int, int]

_RESTRICTED = re.compile(r"@(\d+)\.(\d+)([+-]) (.*)")
_SETS = re.compile(r"[A-Z_]+=.*")


@dataclass(frozen=True)
class Command:
    """A command and its expected outcome."""

    how: str
    words: str
    stdin: list[str] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    code: int = 0

    def read(self, line: str) -> Command:
        """Return the command with the next line of the transcript."""
        match line[:2]:
            case "< ":
                return replace(self, stdin=[*self.stdin, line[2:]])
            case "! ":
                return replace(self, stderr=[*self.stderr, line[2:]])
            case "= ":
                return replace(self, code=int(line[2:]))
            case _:
                return replace(self, stdout=[*self.stdout, line])


@dataclass
class Section:
    """Commands that belong together. `names_versions` if one of its lines is restricted to versions of kubectl."""

    title: str
    names_versions: bool = False
    commands: list[Command] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command."""

    stdout: str
    stderr: str
    code: int

    def is_as(self, command: Command) -> bool:
        """Return whether the outcome is the expected one."""
        return (
            matches(command.stdout, self.stdout) and matches(command.stderr, self.stderr) and self.code == command.code
        )


def sections(text: str, version: Version) -> list[Section]:
    """Return the sections of a transcript for a version of kubectl."""
    parsed: list[Section] = []
    for written in text.splitlines():
        line, restricted = written, _RESTRICTED.fullmatch(written)
        if restricted:
            parsed[-1].names_versions = True
            limit = (int(restricted[1]), int(restricted[2]))
            if not (version >= limit if restricted[3] == "+" else version <= limit):
                continue
            line = restricted[4]
        if line.startswith("## "):
            parsed.append(Section(line[3:]))
        elif line.startswith("$"):
            how, _, words = line[1:].partition(" ")
            parsed[-1].commands.append(Command(how, words))
        elif line and not line.startswith("; "):
            commands = parsed[-1].commands
            commands[-1] = commands[-1].read(line)
    return parsed


def matches(wanted: Sequence[str], outcome: str) -> bool:
    """Return whether the output matches the expected lines."""
    pattern = "".join("(?:.*\n)*" if line == "..." else f"{_pattern(line)}\n" for line in wanted)
    lines = "".join(f"{_single_spaced(line)}\n" for line in outcome.splitlines() if line.strip())
    return re.fullmatch(pattern, lines) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _single_spaced(line).split("..."))


def _single_spaced(line: str) -> str:
    return " ".join(line.split())


@dataclass(frozen=True)
class Terminal:
    """Where commands run: the program that stands for `kubectl`, a directory of one's own, the environment."""

    program: str
    directory: Path
    environment: Mapping[str, str]

    def play(self, section: Section, project: str) -> list[str]:
        """Run the commands. Return a text for each command with an unexpected outcome."""
        reported: list[str] = []
        with ExitStack() as end:
            for command in section.commands:
                reported += self._play(_of_project(command, project), end)
        return reported

    def _play(self, command: Command, end: ExitStack) -> Iterator[str]:
        if command.how == "start":
            process = self._process(command, ".beside")
            end.callback(_end, process)
            return
        deadline = time.monotonic() + (0 if command.how == "" else SECONDS)
        begin = time.monotonic()
        while not (outcome := self._seen(command)).is_as(command):
            if time.monotonic() >= deadline:
                yield _differences(command, outcome)
                break
            rest(begin, PAUSE_SECONDS)
            begin = time.monotonic()
        if command.how == "ended":
            end.close()

    def _seen(self, command: Command) -> Outcome:
        if command.how == "ended":
            return Outcome(self._output(".beside"), "", command.code)
        process, late = self._process(command, ""), ""
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            late = f"(no end within {SECONDS:.0f} s)"
        _end(process)
        return Outcome(self._output(""), self._output(".error") + late, process.returncode)

    def _output(self, name: str) -> str:
        return (self.directory / f"output{name}").read_text()

    def _process(self, command: Command, name: str) -> subprocess.Popen[bytes]:
        words = shlex.split(command.words)
        environment = {**os.environ, **self.environment}
        while _SETS.fullmatch(words[0]):
            variable, _, value = words.pop(0).partition("=")
            environment[variable] = value
        program = self.program if words[0] == "kubectl" else words[0]
        (self.directory / "input").write_text("\n".join([*command.stdin, ""]))
        with (
            (self.directory / "input").open("rb") as stdin,
            (self.directory / f"output{name}").open("wb") as stdout,
            (self.directory / "output.error").open("wb") as stderr,
        ):
            return subprocess.Popen(
                [program, *words[1:]],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it started, such as an editor."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _of_project(command: Command, project: str) -> Command:
    def own(lines: list[str]) -> list[str]:
        return [line.replace("PROJECT", project) for line in lines]

    return replace(
        command,
        words=command.words.replace("PROJECT", project),
        stdin=own(command.stdin),
        stdout=own(command.stdout),
        stderr=own(command.stderr),
    )


def _differences(command: Command, outcome: Outcome) -> str:
    wanted = [*command.stdout, *(f"! {line}" for line in command.stderr), f"= {command.code}"]
    actual = [*outcome.stdout.splitlines(), *(f"! {line}" for line in outcome.stderr.splitlines()), f"= {outcome.code}"]
    return "\n".join(
        [f"$ {command.words}", "  must come:", *(f"    {s}" for s in wanted), "  came:", *(f"    {s}" for s in actual)]
    )
