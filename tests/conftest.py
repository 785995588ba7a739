"""Hooks for all tiers: a skip in a tier that must run is a failure; tests that share a fixture share a process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator

import hypothesis
import pytest

MUST_RUN = ("tests/unit/", "tests/golden/", "tests/contract/", "tests/switch/", "tests/net/", "tests/e2e/")

ORDER = ("tests/e2e/", "tests/net/", "tests/contract/", "tests/switch/", "tests/unit/")
"""Files that take long come first, so that no process has to wait for one in the end."""

LASTING = {"tests/e2e/lab": "cluster", "tests/net": "world"}
"""Folder → fixture that lives longer than a file; the tests below it that use the fixture stay together."""

# Helpers assert, too: a failure shows their values as it does those of a test.
pytest.register_assert_rewrite("tests.testbed")

# kubectl, runc and Docker collect garbage four times as rarely: a short command takes a fifth less CPU time.
os.environ.setdefault("GOGC", "400")

# No example has to be done in a given time: how long one takes is the machine's affair.
hypothesis.settings.register_profile("podlane", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=30)
hypothesis.settings.load_profile("podlane")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, and exempt modules and tests from it: it would visit them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes share the tests (`-n 4 --dist loadgroup`): each takes a file, or what shares a fixture."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if not item.nodeid.startswith(MUST_RUN):
            item.add_marker(pytest.mark.timeout(0))  # Virtual machines and suites of others take their time.
    items.sort(key=_rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A process that shares tests with others has to see their groups."""
    shares = hasattr(session.config, "workerinput") and session.config.getoption("loadgroup")
    if shares and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError(
            "this pytest-xdist names no groups to this pytest: tests of one file would be torn apart"
        )


def _group(item: pytest.Item) -> str:
    path, _, _ = item.nodeid.partition("::")
    used = getattr(item, "fixturenames", ())
    return next((folder for folder, name in LASTING.items() if path.startswith(f"{folder}/") and name in used), path)


def _rank(item: pytest.Item) -> int:
    """Tests of one group need not stand together; their order within it stays."""
    return next((number for number, tier in enumerate(ORDER) if item.nodeid.startswith(tier)), len(ORDER))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show the end of a failure when it happens: a run that is ended from outside prints no summary.

    Only the process that shares the tests with others does so; reports that it receives name their process.
    """
    if report.failed and hasattr(report, "node"):
        end = "\n".join(report.longreprtext.splitlines()[-30:])
        sys.stdout.write(f"\n{report.nodeid} failed in its {report.when}:\n{end}\n")
        sys.stdout.flush()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.nodeid.startswith(MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but this tier must run everywhere: {report.longrepr}"
    return report
