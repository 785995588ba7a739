"""Shared by all tiers: a test that is skipped where it must run is a failure."""

from __future__ import annotations

from collections.abc import Generator

import pytest

MUST_RUN = ("tests/unit/", "tests/golden/", "tests/contract/", "tests/switch/", "tests/net/", "tests/e2e/")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.nodeid.startswith(MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but this tier must run everywhere: {report.longrepr}"
    return report
