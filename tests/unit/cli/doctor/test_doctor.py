"""How `podlane doctor` runs its checks, and what it prints."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from api.network.forwarding import accepts_pods
from cli.__main__ import main
from cli.doctor.command import as_json, as_text, exit_code
from cli.doctor.examine import Check, examine, examine_one
from cli.doctor.gather import dockerd_iptables
from cli.doctor.host import SDN, Failed, Host, SdnSettings, read_host, run
from cli.doctor.observations import Configuration, Finding, Level, NotObserved

HOST = Host(None, SdnSettings(), None, (Configuration(SDN, "/sdn.yaml"),))
GOOD = Finding("x", Level.OK, "all is well")
BAD = Finding("x", Level.PROBLEM, "it is broken", "mend it")


def check(act: Callable[[Host], Awaitable[tuple[Finding, ...]]], *daemons: str) -> Check:
    return Check("x", "a thing", frozenset(daemons or (SDN,)), act)


def raising(error: Exception) -> Check:
    async def act(_: Host) -> tuple[Finding, ...]:
        raise error

    return check(act)


async def good(_: Host) -> tuple[Finding, ...]:
    return (GOOD,)


@pytest.mark.parametrize(
    ("error", "level", "words"),
    [
        (NotObserved("not looked at", "look"), Level.WARNING, "not looked at"),
        (NotObserved("it does not answer", "start it", Level.PROBLEM), Level.PROBLEM, "does not answer"),
        (ConnectionRefusedError(111, "Connection refused"), Level.PROBLEM, "Connection refused"),
        (msgspec.ValidationError("no object"), Level.PROBLEM, "an answer was not understood: no object"),
        (PermissionError(13, "Permission denied", "/secret"), Level.WARNING, "/secret may be read by root only"),
    ],
)
async def test_what_cannot_be_looked_at_is_a_finding(error: Exception, level: Level, words: str) -> None:
    [finding] = await examine_one(raising(error), HOST, 5.0)
    assert finding.level is level
    assert words in finding.found
    assert finding.command


async def test_check_that_hangs_is_a_finding_and_holds_up_no_other() -> None:
    async def hang(_: Host) -> tuple[Finding, ...]:
        await asyncio.Event().wait()
        return ()

    done: list[str] = []
    found = await examine(HOST, done.append, (check(hang), check(good)), 0.01)
    assert [finding.level for finding in found] == [Level.PROBLEM, Level.OK]
    assert "not known after 0.01 s" in found[0].found
    assert len(done) == 2


async def test_checks_of_daemons_that_are_not_here_are_left_out() -> None:
    found = await examine(HOST, lambda _: None, (check(good, "podlane-master"), check(good)))
    assert found == (GOOD,)


def test_exit_code_is_1_with_problems_only() -> None:
    assert exit_code((GOOD, Finding("x", Level.WARNING, "hm", "look"))) == 0
    assert exit_code((GOOD, BAD)) == 1


def test_text_has_a_line_for_each_finding_and_problems_last() -> None:
    lines = as_text((BAD, GOOD)).splitlines()
    assert lines[1].split() == ["OK", "x", "all", "is", "well"]
    assert lines[2].split()[:2] == ["PROBLEM", "x"]
    assert lines[2].endswith("it is broken; run: mend it")
    assert lines[-1] == "problems: 1, warnings: 0, good: 1"


def test_control_characters_of_others_are_not_printed() -> None:
    assert "\x1b" not in as_text((Finding("x", Level.PROBLEM, "a\x1b[2Jb", "c"),))


def test_json_has_stable_names() -> None:
    document = json.loads(as_json((BAD, GOOD)))
    assert document["problems"] == 1
    assert document["findings"][0] == {"check": "x", "level": "problem", "found": "it is broken", "command": "mend it"}


def test_host_that_is_no_node_is_told_where_to_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(tmp_path)]) == 1
    assert "this host is no node and no master" in capsys.readouterr().out


async def test_problems_of_a_configuration_are_those_that_the_daemon_reports(tmp_path: Path) -> None:
    (tmp_path / "sdn.yaml").write_text("nodeName: node-1\nnodeIp: nowhere\n")
    host = await read_host(tmp_path)
    [configuration] = host.configurations
    assert any(line.startswith("nodeIp: found 'nowhere'") or "nodeIp" in line for line in configuration.problems)
    assert host.sdn is not None
    assert host.sdn.node_name == "node-1"
    assert host.agent is None


async def test_output_of_a_program_is_bounded() -> None:
    assert await run([sys.executable, "-c", "print('x' * 100000)"], 30.0, limit=10) == "x" * 10


async def test_program_that_fails_hangs_or_is_missing() -> None:
    with pytest.raises(Failed, match="failed: why"):
        await run([sys.executable, "-c", "import sys; sys.exit('why')"], 30.0)
    with pytest.raises(NotObserved, match=r"did not end within 0\.01 s"):
        await run(["sleep", "60"], 0.01)
    with pytest.raises(NotObserved, match="cannot be run: No such file"):
        await run(["/nonexistent/program"], 1.0)


@pytest.mark.parametrize(
    ("rules", "accepted"),
    [
        ('iifname "tun0" counter accept comment "podlane"\noifname "tun0" accept', True),
        ("-A FORWARD -i tun0 -j ACCEPT\n-A FORWARD -o tun0 -j ACCEPT", True),
        ('iifname "tun0" accept', False),
        ('iifname "tun0" drop\noifname "tun0" drop', False),
        ("", False),
    ],
)
def test_rules_that_accept_packets_of_pods(rules: str, accepted: bool) -> None:
    assert accepts_pods(rules) is accepted


def test_options_of_dockerd_come_from_its_arguments_and_its_file(tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    argument = f"--config-file={file}"
    assert dockerd_iptables((argument,)) == (True, "")
    file.write_text('{"iptables": false}')
    assert dockerd_iptables((argument,)) == (False, "")
    assert dockerd_iptables((argument, "--iptables=true")) == (True, "")
    for wrong in ("[]", "{"):
        file.write_text(wrong)
        assert str(file) in dockerd_iptables((argument,))[1]
