"""Clusters whose switches are tested by ofproto/trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.testbed.isolation.world import NODES
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, populate


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        yield populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)


@pytest.fixture(scope="module")
def flat_world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        yield populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=False)


@pytest.fixture
def switch() -> Iterator[DummySwitch]:
    with DummySwitch() as running:
        yield running
