"""The loop, the difference by key, settings and log lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.changes import changes
from reconcile.config_file import InvalidConfig, load, merge
from reconcile.daemon import KeyValue
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming, retry_delay

maps = st.dictionaries(st.integers(0, 9), st.integers(0, 3))


@given(maps, maps)
def test_changes_lead_from_observed_to_desired(desired: dict[int, int], observed: dict[int, int]) -> None:
    found = changes(desired, observed)
    after = {key: value for key, value in observed.items() if key not in found.remove}
    assert after | found.add | found.change == desired
    assert bool(found) == (desired != observed)


class Passes:
    """Counts passes and plays failures."""

    def __init__(self, *failures: Exception | None) -> None:
        self.count = 0
        self._failures = list(failures)
        self.reached = asyncio.Event()
        self.wanted = 0

    async def __call__(self) -> None:
        self.count += 1
        if self.count >= self.wanted:
            self.reached.set()
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    async def until(self, count: int) -> None:
        self.wanted = count
        self.reached.clear()
        if self.count < count:
            async with asyncio.timeout(5):
                await self.reached.wait()


async def test_the_first_pass_comes_at_once_and_an_event_brings_the_next() -> None:
    passes = Passes()
    loop = Loop("test", passes, LoopTiming(resync=1000))
    task = asyncio.create_task(loop.run())
    await passes.until(1)
    for expected in (2, 3):
        loop.wake()
        loop.wake()
        await passes.until(expected)
    task.cancel()
    assert passes.count == 3


async def test_a_drivers_error_brings_the_next_pass_sooner() -> None:
    passes = Passes(NotReady("away"), NotReady("away"))
    loop = Loop("test", passes, LoopTiming(resync=1000, backoff_base=0.001))
    task = asyncio.create_task(loop.run())
    await passes.until(3)
    task.cancel()
    assert loop.failures in {0, 2}


async def test_any_other_error_ends_the_loop() -> None:
    loop = Loop("test", Passes(ZeroDivisionError()), LoopTiming())
    with pytest.raises(ZeroDivisionError):
        await loop.run()


def test_retries_double_up_to_the_last() -> None:
    pace = LoopTiming(backoff_base=0.1, backoff_max=1.0)
    assert [retry_delay(n, pace) for n in (1, 2, 3, 4, 5, 500)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


class Wishes(msgspec.Struct, frozen=True, rename="camel"):
    """For the test."""

    node_name: Annotated[str, msgspec.Meta(description="a name")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535, description="a port")] = 80
    plugin: str = "a"


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: object) -> None:
    assert merge(Wishes, {"nodeName": "n", "port": 1}, {"port": "2"}) == Wishes("n", 2)
    assert merge(Wishes, {"nodeName": "n"}, {}) == Wishes("n", 80)


def test_every_problem_of_the_settings_is_told() -> None:
    with pytest.raises(InvalidConfig) as told:
        merge(Wishes, {"port": 70000, "plugin": 3}, {})
    assert [line.partition(":")[0] for line in str(told.value).splitlines()] == ["nodeName", "port", "plugin"]
    with pytest.raises(InvalidConfig, match='nodNam: is not a setting; did you mean "nodeName"'):
        merge(Wishes, {"nodNam": "x"}, {})


def test_wrong_use_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(Wishes, "podlane-test", "/nowhere", ["--node-name", "n", "--port", "none"])
    assert end.value.code == 2
    assert "podlane-test: port: found 'none'" in capsys.readouterr().err


def test_check_prints_what_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(Wishes, "podlane-test", "/nowhere", ["--node-name", "n", "--check"])
    assert end.value.code == 0
    assert capsys.readouterr().out == "nodeName: n\nport: 80\nplugin: a\n"


def test_a_log_line_is_key_value() -> None:
    record = logging.makeLogRecord({"msg": "pod attached", "levelname": "INFO", "pod": "red/a", "why": 'a "b"\nc'})
    assert KeyValue().format(record) == r'level=info msg="pod attached" pod=red/a why="a \"b\"\nc"'
