"""Shared by all tiers: a test that is skipped where it must run is a failure."""

from __future__ import annotations

from collections.abc import Generator

import hypothesis
import pytest

MUST_RUN = ("tests/unit/", "tests/golden/", "tests/contract/", "tests/switch/", "tests/net/", "tests/e2e/")

# No example has to be done in a given time: how long one takes is the machine's affair.
hypothesis.settings.register_profile("podlane", deadline=None)
hypothesis.settings.load_profile("podlane")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.nodeid.startswith(MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, but this tier must run everywhere: {report.longrepr}"
    return report
