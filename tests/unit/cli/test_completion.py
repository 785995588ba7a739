"""Completion in the shells themselves: what a shell offers for a line that somebody begins."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest

from cli.__main__ import build_parser, main
from cli.completion import SHELLS, script

WAIT_SECONDS = 60
"""A shell that says nothing for so long hangs."""

BASH = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMPREPLY=()
complete=$(complete -p podlane)
function=${complete#*-F }
"${function%% *}" podlane "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(*command: str, folder: Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, timeout=WAIT_SECONDS)
    assert done.stderr == ""
    return done.stdout.splitlines()


def offers(shell: str, folder: Path, *words: str) -> set[str]:
    """Return what a shell offers for the last word."""
    file = folder / ("_podlane" if shell == "zsh" else f"podlane.{shell}")
    file.write_text(script(build_parser(), shell))
    match shell:
        case "bash":
            return {
                word.strip() for word in run("bash", "--norc", "-c", BASH, "bash", str(file), *words, folder=folder)
            }
        case "fish":
            command = f"source {file}; complete --do-complete '{' '.join(words)}'"
            return {line.partition("\t")[0] for line in run("fish", "--no-config", "-c", command, folder=folder)}
        case _:
            return _zsh_offers(file, " ".join(words))


ZSH = """
fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; unset zle_bracketed_paste
offers() { zle list-choices; zle -R; zle -I; print do''ne }
zle -N offers; bindkey '^X' offers; print re''ady
"""


def _zsh_offers(file: Path, line: str) -> set[str]:
    """Type a line and the key that lists completions at a terminal, and return the words that zsh prints."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(file.parent)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"TERM": "dumb", "PATH": os.environ["PATH"], "COLUMNS": "200"})
    try:
        os.write(terminal, ZSH.encode())
        _read_until(terminal, b"ready")
        os.write(terminal, f"{line}\x18".encode())
        return set(re.findall(r"[\w./-]+", _read_until(terminal, b"done").decode()))
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def _read_until(terminal: int, end: bytes) -> bytes:
    text = b""
    while end not in text:
        assert select.select([terminal], [], [], WAIT_SECONDS)[0], text
        text += os.read(terminal, 65536)
    return text


def test_a_shell_offers_the_commands_of_a_topic(shell: str, tmp_path: Path) -> None:
    assert {"lab", "network", "version"} <= offers(shell, tmp_path, "podlane", "")
    of_network = offers(shell, tmp_path, "podlane", "network", "")
    assert {"status", "join", "trace", "services"} <= of_network
    assert not of_network & {"version", "submit"}


def test_a_shell_completes_a_word_that_is_begun(shell: str, tmp_path: Path) -> None:
    offered = offers(shell, tmp_path, "podlane", "network", "s")
    assert {"status", "services"} <= offered
    assert not offered & {"join", "trace"}


def test_a_shell_offers_options_and_their_choices(shell: str, tmp_path: Path) -> None:
    assert {"--nodes", "--plugin"} <= offers(shell, tmp_path, "podlane", "lab", "up", "--")
    assert {"ovs-multitenant", "ovs-subnet"} <= offers(shell, tmp_path, "podlane", "lab", "up", "--plugin", "")


def test_a_shell_offers_files_where_files_are_accepted(shell: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").touch()
    (tmp_path / "manifests").mkdir()
    assert {"manifest.yaml"} <= offers(shell, tmp_path, "podlane", "check", "man")
    assert {"manifest.yaml"} <= offers(shell, tmp_path, "podlane", "network", "status", "--kubeconfig", "man")
    assert "manifest.yaml" not in offers(shell, tmp_path, "podlane", "node", "add", "man")


def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(build_parser(), shell)
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "tcsh"])
    assert "choose from" in capsys.readouterr().err
