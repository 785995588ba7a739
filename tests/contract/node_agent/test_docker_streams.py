"""Exec and attach on a real Docker."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lab import images
from lab.process import run
from node_agent.docker import exec as docker_exec
from node_agent.docker import process
from node_agent.docker.exec import ExecJournal, StreamSession, TerminalSize, attach, kill_orphaned_execs, start_exec
from node_agent.docker.http import docker_request, docker_session
from reconcile.errors import Gone, NotReady, Refused
from tests.testbed.docker.containers import (
    open_sockets,
    read_output,
    run_docker,
    running_programs,
    start_container,
    until,
)
from tests.testbed.docker.daemon import DEADLINE_SECONDS, Dockerd

MUCH = 16 << 20
BLOCK = random.Random(6).randbytes(1 << 16)


@pytest.fixture(scope="module")
def box(dockerd: Dockerd) -> str:
    """Start a container that does nothing, and return its id."""
    return start_container(dockerd)


@pytest.fixture(autouse=True)
async def _nothing_stays(dockerd: Dockerd) -> AsyncIterator[None]:
    """Check that no socket and no unfinished program is left after a test."""
    before = open_sockets()
    yield
    await until(lambda: open_sockets() <= before, "no socket is left")
    assert noted(dockerd).unfinished == ()
    await until(lambda: len(asyncio.all_tasks()) == 1, "no task is left")


async def execute(
    dockerd: Dockerd,
    box: str,
    *command: str,
    stdin: bool = False,
    tty: bool = False,
    size: TerminalSize | None = None,
) -> StreamSession:
    started = noted(dockerd)
    return await start_exec(str(dockerd.socket), box, command, stdin=stdin, tty=tty, size=size, journal=started)


def noted(dockerd: Dockerd) -> ExecJournal:
    return ExecJournal(dockerd.socket.parent / "programs")


async def test_exec_returns_stdout_stderr_and_exit_code(dockerd: Dockerd, box: str) -> None:
    async with await execute(dockerd, box, "sh", "-c", "echo out; echo err >&2; exit 3") as program:
        assert await read_output(program) == (b"out\n", b"err\n")
        assert await program.exit_code() == 3


async def test_exec_of_a_missing_program_reports_it(dockerd: Dockerd, box: str) -> None:
    async with await execute(dockerd, box, "/nowhere") as program:
        output, _ = await read_output(program)
        assert b"/nowhere" in output
        assert await program.exit_code() in {126, 127}


async def test_exec_program_sees_stdin_end_and_continues_output(dockerd: Dockerd, box: str) -> None:
    async with await execute(dockerd, box, "sh", "-c", "sort; echo done", stdin=True) as program:
        await program.write_stdin(b"b\n")
        await program.write_stdin(b"a\n")
        await program.end_stdin()
        assert await read_output(program) == (b"a\nb\ndone\n", b"")
        assert await program.exit_code() == 0


async def test_exec_terminal_is_sized_and_resized(dockerd: Dockerd, box: str) -> None:
    script = (
        "until [ \"$(stty size 2>/dev/null)\" = '30 100' ]; do usleep 10000; done; echo first; read line; stty size"
    )
    async with await execute(
        dockerd, box, "sh", "-c", script, stdin=True, tty=True, size=TerminalSize(100, 30)
    ) as program:
        output = program.output()
        assert await anext(output) == (1, b"first\r\n")
        await program.resize(TerminalSize(width=132, height=43))
        await program.write_stdin(b"\n")
        await program.end_stdin()  # A terminal goes on all the same.
        rest = b"".join([data async for _, data in output])
        assert rest.replace(b"\r\n", b" ").split() == [b"43", b"132"]
        assert await program.exit_code() == 0
        await program.resize(TerminalSize(1, 1))


async def test_exec_terminal_passes_keystrokes_at_once(dockerd: Dockerd, box: str) -> None:
    script = "stty raw -echo; echo; head -c 1 | od -An -tx1"
    async with await execute(dockerd, box, "sh", "-c", script, stdin=True, tty=True) as program:
        output = program.output()
        await anext(output)
        await program.write_stdin(b"\x10")  # ctrl-p, which Docker by itself keeps until the next key
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert b"10" in b"".join([data async for _, data in output])


async def test_exec_copies_large_data_with_little_buffering(dockerd: Dockerd, box: str) -> None:
    sent, came, count = hashlib.sha256(), hashlib.sha256(), 0

    async def feed(program: StreamSession) -> None:
        for _ in range(MUCH // len(BLOCK)):
            sent.update(BLOCK)
            await program.write_stdin(BLOCK)
        await program.end_stdin()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with await execute(dockerd, box, "cat", stdin=True) as program:
        feeding = asyncio.create_task(feed(program))
        async for _, data in program.output():
            came.update(data)
            count += len(data)
        await feeding
        assert await program.exit_code() == 0
    assert (count, came.digest()) == (MUCH, sent.digest())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (8 << 20) / 1024


async def test_exec_program_that_does_not_read_blocks_the_writer(dockerd: Dockerd, box: str) -> None:
    taken = 0

    async def feed(program: StreamSession) -> None:
        nonlocal taken
        while True:
            await program.write_stdin(BLOCK)
            taken += len(BLOCK)

    async with await execute(dockerd, box, "sh", "-c", "echo; sleep 1000", stdin=True) as program:
        output = program.output()
        await anext(output)
        feeding = asyncio.create_task(feed(program))
        last = -1
        while taken != last:
            last = taken
            await asyncio.sleep(0.3)
        assert 0 < taken < 3_000_000
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def test_reader_that_does_not_read_blocks_the_exec_program(dockerd: Dockerd, box: str) -> None:
    script = "i=0; while head -c 65536 /dev/zero; do i=$((i+1)); echo $i > /tmp/slow; done"
    async with await execute(dockerd, box, "sh", "-c", script) as program:
        output = program.output()
        await anext(output)
        await standstill(dockerd, box)
        stood = int(run_docker(dockerd, "exec", box, "cat", "/tmp/slow"))
        assert stood * 65536 < 8 << 20
        for _ in range(200):
            await anext(output)
        await until(lambda: int(run_docker(dockerd, "exec", box, "cat", "/tmp/slow") or 0) > stood, "it goes on")


async def standstill(dockerd: Dockerd, box: str) -> None:
    """Wait until the program has written nothing for several checks."""
    seen: list[str] = []
    while len(seen) < 4 or len(set(seen[-4:])) > 1:
        seen.append(run_docker(dockerd, "exec", box, "cat", "/tmp/slow"))


async def test_hundred_parallel_exec_programs_are_kept_separate(dockerd: Dockerd, box: str) -> None:
    async def execute_cat(number: int) -> tuple[bytes, int]:
        async with await execute(dockerd, box, "sh", "-c", f"cat; exit {number}", stdin=True) as program:
            await program.write_stdin(b"%d" % number)
            await program.end_stdin()
            output, _ = await read_output(program)
            return output, await program.exit_code()

    actual = await asyncio.gather(*map(execute_cat, range(100)))
    assert actual == [(b"%d" % number, number) for number in range(100)]


@pytest.mark.parametrize("script", ["sleep 1000", "sleep 1000; true", "cat", "yes"])
async def test_abandoned_exec_program_ends_with_its_children(dockerd: Dockerd, box: str, script: str) -> None:
    async with await execute(dockerd, box, "sh", "-c", f"echo; {script}", stdin=True) as program:
        await anext(program.output())
        assert running_programs(dockerd, box)
    assert not running_programs(dockerd, box)


async def test_abandoned_exec_program_that_ignores_sigterm_is_killed(
    dockerd: Dockerd, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_exec, "HANGUP_SECONDS", 0.2)
    async with await execute(dockerd, box, "sh", "-c", "trap '' HUP; echo; while :; do sleep 1000; done") as program:
        await anext(program.output())
    assert not running_programs(dockerd, box)


async def test_abandoned_exec_program_may_handle_sigterm(dockerd: Dockerd, box: str) -> None:
    script = "trap 'echo bye > /tmp/bye; exit' HUP; echo; while :; do sleep 0.05; done"
    async with await execute(dockerd, box, "sh", "-c", script) as program:
        await anext(program.output())
    assert run_docker(dockerd, "exec", box, "cat", "/tmp/bye") == "bye\n"


async def test_closing_an_ended_exec_again_does_nothing(dockerd: Dockerd, box: str) -> None:
    program = await execute(dockerd, box, "true")
    assert await read_output(program) == (b"", b"")
    assert await program.exit_code() == 0
    await program.detach()
    await program.detach()
    with pytest.raises(ConnectionError):
        await (await execute_and_leave(dockerd, box)).write_stdin(b"?")


async def execute_and_leave(dockerd: Dockerd, box: str) -> StreamSession:
    program = await execute(dockerd, box, "cat", stdin=True)
    await program.detach()
    return program


@pytest.mark.parametrize("size", [None, TerminalSize(80, 24)], ids=["plain", "terminal"])
async def test_exec_cancelled_during_start_leaves_no_program(
    dockerd: Dockerd, box: str, size: TerminalSize | None
) -> None:
    for number in range(12):
        starting = asyncio.create_task(
            execute(dockerd, box, "sleep", "1000", stdin=True, tty=size is not None, size=size)
        )
        await asyncio.sleep(number * 0.01)
        starting.cancel()
        [result] = await asyncio.gather(starting, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.detach()
    await until(lambda: not docker_exec._background_tasks, "all is let go of")
    assert not running_programs(dockerd, box)


async def test_exec_program_with_an_unknown_start_is_ended(
    dockerd: Dockerd, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("the server has gone")

    hung_up = []

    async def noted(pid: int, cgroup: str, seconds: float) -> None:
        hung_up.append(pid)
        await hang_up(pid, cgroup, seconds)

    hang_up = process.hang_up
    monkeypatch.setattr(process, "hang_up", noted)
    monkeypatch.setattr(docker_exec, "upgraded_connection", lost)
    with pytest.raises(NotReady, match="the server has gone"):
        await execute(dockerd, box, "sleep", "1000")
    await until(lambda: not docker_exec._background_tasks, "all is let go of")
    assert len(hung_up) == 1
    assert not running_programs(dockerd, box)


async def test_exec_cancelled_during_close_is_still_closed(dockerd: Dockerd, box: str) -> None:
    program = await execute(dockerd, box, "sleep", "1000")
    leaving = asyncio.create_task(program.detach())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await program.detach()
    assert not running_programs(dockerd, box)


async def test_exec_programs_end_with_their_container(dockerd: Dockerd) -> None:
    container = start_container(dockerd)
    async with await execute(dockerd, container, "sh", "-c", "echo; sleep 1000") as program:
        output = program.output()
        await anext(output)
        run_docker(dockerd, "kill", container)
        assert [data async for data in output] == []
        assert await program.exit_code() == 137


async def test_exec_exit_code_is_unknown_when_the_container_is_removed(dockerd: Dockerd) -> None:
    container = start_container(dockerd)
    async with await execute(dockerd, container, "sh", "-c", "echo; sleep 1000") as program:
        output = program.output()
        await anext(output)
        run_docker(dockerd, "rm", "-f", container)
        assert [data async for data in output] == []
        with pytest.raises(Gone):
            await program.exit_code()


async def test_exec_in_a_stopped_or_missing_container_reports_it(dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    ended = start_container(dockerd, "true")
    run_docker(dockerd, "wait", ended)
    for container, kind in ((ended, Refused), ("nobody", Gone)):
        with pytest.raises(kind, match=r"not running|No such container"):
            await execute(dockerd, container, "true")
        with pytest.raises(kind, match=r"not running|No such container"):
            await attach(str(dockerd.socket), container, stdin=False, stdout=True, stderr=True)
    for act in (
        start_exec(str(tmp_path / "none"), box, ("true",), stdin=False, tty=False, journal=ExecJournal(tmp_path)),
        attach(str(tmp_path / "none"), box, stdin=False, stdout=True, stderr=True),
    ):
        with pytest.raises(NotReady, match="does not answer"):
            await act


async def test_attach_reads_and_writes_and_keeps_the_container_running(dockerd: Dockerd) -> None:
    container = start_container(
        dockerd, "sh", "-c", "while read line; do echo $line; echo $line >&2; done", flags=("-i",)
    )
    async with await attach(str(dockerd.socket), container, stdin=True, stdout=True, stderr=True) as process:
        await process.write_stdin(b"hello\n")
        output = process.output()
        received: set[tuple[int, bytes]] = set()
        while len(received) < 2:
            received.add(await anext(output))
        assert received == {(1, b"hello\n"), (2, b"hello\n")}
    async with await attach(str(dockerd.socket), container, stdin=True, stdout=False, stderr=True) as process:
        await process.write_stdin(b"again\n")
        assert await anext(process.output()) == (2, b"again\n")
    assert run_docker(dockerd, "inspect", "-f", "{{.State.Running}}", container) == "true\n"


async def test_stdin_once_ends_with_the_first_attached_client(dockerd: Dockerd) -> None:
    # Docker's command line makes no container with StdinOnce that it does not attach to.
    client = dockerd.client()
    config = client.create_container_config(images.TOOLBOX, ["sort"], stdin_open=True, network_disabled=True)
    container = client.create_container_from_config(config | {"StdinOnce": True})["Id"]
    client.start(container)
    client.close()
    async with await attach(str(dockerd.socket), container, stdin=True, stdout=True, stderr=True) as process:
        await process.write_stdin(b"b\na\n")
        await process.end_stdin()
        assert await read_output(process) == (b"a\nb\n", b"")
        assert await process.exit_code() == 0


async def test_attach_to_a_container_without_stdin_passes_no_input(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "while :; do echo; sleep 0.1; done")
    async with await attach(str(dockerd.socket), container, stdin=True, stdout=True, stderr=True) as process:
        for _ in range(64):
            await process.write_stdin(BLOCK)
        await process.end_stdin()
        assert await anext(process.output()) == (1, b"\n")


async def test_attached_terminal_is_resized(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "while read line; do stty size; done", flags=("-it",))
    async with await attach(str(dockerd.socket), container, stdin=True, stdout=True, stderr=False) as process:
        await process.resize(TerminalSize(width=99, height=33))
        await process.write_stdin(b"\n")
        output, said = process.output(), b""
        while b"33 99\r\n" not in said:
            said += (await anext(output))[1]
        run_docker(dockerd, "kill", container)
        assert [data async for data in output] == []


@pytest.fixture
def mortal() -> Iterator[tuple[Dockerd, subprocess.Popen[bytes]]]:
    """Run a Docker that the test may kill. Another Docker removes its remains."""
    daemon = Dockerd(Path(f"/tmp/podlane-mortal-{os.getpid()}"))
    daemon.root.mkdir()
    running = daemon.start()
    try:
        images.load(str(daemon.socket))
        yield daemon, running
    finally:
        running.kill()
        running.wait()
        # It believes that its containerd still runs, as long as anybody's process has that number.
        (daemon.root / "exec/containerd/containerd.pid").unlink(missing_ok=True)
        revived = daemon.start()
        run_docker(daemon, "rm", "-f", *run_docker(daemon, "ps", "-aq").split())
        revived.terminate()
        revived.wait()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{daemon.root}/"):
                run("umount", line.split()[1])
        shutil.rmtree(daemon.root)


async def test_killed_docker_is_reported_at_once(
    mortal: tuple[Dockerd, subprocess.Popen[bytes]],
) -> None:
    daemon, running = mortal
    container = start_container(daemon)
    async with await execute(daemon, container, "sh", "-c", "echo; sleep 1000") as program:
        output = program.output()
        await anext(output)
        running.kill()
        assert [data async for _, data in output] == []
        with pytest.raises(NotReady, match="does not answer"):
            await program.exit_code()


AGENT = """
import asyncio, sys
from pathlib import Path
from node_agent.docker.exec import ExecJournal, start_exec

async def main():
    socket, box, programs = sys.argv[1:]
    journal = ExecJournal(Path(programs))
    held = [
        await start_exec(socket, box, ("sleep", "7001"), stdin=True, tty=False, journal=journal),
        await start_exec(socket, box, ("yes", "7002"), stdin=False, tty=True, journal=journal),
        await start_exec(socket, box, ("sh", "-c", "trap : HUP; while :; do sleep 1; done"),
                         stdin=False, tty=False, journal=journal),
    ]
    ended = await start_exec(socket, box, ("true",), stdin=False, tty=False, journal=journal)
    async with ended:
        await ended.exit_code()
    print(len(held), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_exec_programs_of_a_killed_agent_are_ended_by_the_next(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_exec, "HANGUP_SECONDS", 0.5)
    box = start_container(dockerd)
    ours = {"sleep 7001", "yes 7002", "sh -c trap : HUP; while :; do sleep 1; done"}

    def runs() -> set[str]:
        rows = run_docker(dockerd, "top", box, "-o", "pid,args").splitlines()[1:]
        return {line.split(None, 1)[1] for line in rows} & {*ours, "sleep 7003"}

    theirs = ("docker", "-H", f"unix://{dockerd.socket}", "exec", box, "sleep", "7003")
    words = (sys.executable, "-c", AGENT, str(dockerd.socket), box, str(dockerd.socket.parent / "programs"))
    with spawned(*theirs) as administrator, spawned(*words) as agent:
        assert agent.stdout is not None
        assert await asyncio.to_thread(agent.stdout.readline) == "3\n"
        await until(lambda: runs() == {*ours, "sleep 7003"}, "all run")
        agent.kill()
        agent.wait()
        started = noted(dockerd)
        assert len(started.unfinished) == 3
        assert runs() == {*ours, "sleep 7003"}
        async with asyncio.timeout(DEADLINE_SECONDS):
            await kill_orphaned_execs(str(dockerd.socket), started)
        assert runs() == {"sleep 7003"}
        assert noted(dockerd).unfinished == ()
        assert administrator.poll() is None
        run_docker(dockerd, "rm", "--force", box)


async def test_records_of_ended_or_unstarted_exec_programs_are_removed(
    dockerd: Dockerd, box: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(docker_exec, "RESPONSE_TIMEOUT_SECONDS", 0.1)
    async with docker_session(str(dockerd.socket)) as docker:
        created = await docker_request(docker, "POST", f"/containers/{box}/exec", {"Cmd": ["sleep", "7004"]})
    for identity in (created["Id"], "0" * 64):
        ExecJournal(tmp_path).add(identity)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await kill_orphaned_execs(str(dockerd.socket), ExecJournal(tmp_path))
    assert ExecJournal(tmp_path).unfinished == ()


async def test_exec_records_are_kept_while_docker_is_unreachable(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(docker_exec, "RETRY_SECONDS", 0.01)
    away = tmp_path / "docker.sock"
    ExecJournal(tmp_path / "programs").add("0" * 64)
    ending = asyncio.create_task(kill_orphaned_execs(str(away), ExecJournal(tmp_path / "programs")))
    done, _ = await asyncio.wait({ending}, timeout=0.2)
    assert not done
    assert ExecJournal(tmp_path / "programs").unfinished == ("0" * 64,)
    away.symlink_to(dockerd.socket)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await ending
    assert ExecJournal(tmp_path / "programs").unfinished == ()


@contextlib.contextmanager
def spawned(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that leads a session."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_process_of_another_container_is_never_signalled() -> None:
    with spawned("sleep", "1000") as other:
        await process.hang_up(other.pid, "0123456789abcdef", 0.1)
        assert other.poll() is None
        await process.hang_up(other.pid, "", DEADLINE_SECONDS)
        assert other.wait() == -signal.SIGHUP
        await process.hang_up(other.pid, "", DEADLINE_SECONDS)


@pytest.mark.parametrize(("later", "ended"), [(0.0, True), (-100.0, False), (100.0, False)])
async def test_exec_program_given_up_by_docker_is_ended_and_a_reused_pid_is_not(
    later: float, ended: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Docker reports 126 for a program whose output was not read, although the program runs."""
    started, noted_at = ExecJournal(tmp_path), time.time() + later
    with spawned("sleep", "1000") as program:

        async def inspect(*_: object) -> object:
            return {"Running": False, "ExitCode": 126, "Pid": program.pid, "ContainerID": ""}

        monkeypatch.setattr(docker_exec, "docker_request", inspect)
        started.add("0" * 64)
        os.utime(tmp_path / ("0" * 64), (noted_at, noted_at))
        await kill_orphaned_execs("", ExecJournal(tmp_path))
        assert started.added_at("0" * 64) == 0
        assert (program.poll() == -signal.SIGHUP) == ended


CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
child.wait()
"""


async def test_process_that_leads_no_group_is_ended_alone() -> None:
    with spawned(sys.executable, "-c", CHILD) as leader:
        assert leader.stdout is not None
        await process.hang_up(int(leader.stdout.readline()), "", DEADLINE_SECONDS)
        assert leader.wait() == 0
