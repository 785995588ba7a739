"""A node without a pod network, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.node.pods import NodePods
from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until


@pytest.fixture(scope="module")
def bare() -> Iterator[NodePods]:
    """Yield a node that is ready, for all tests of a file."""
    with SingleNode() as node:
        node.agent()
        wait_until(lambda: node.node_condition("Ready") == "True", "the node")
        yield NodePods(node)


@pytest.fixture
def alone(bare: NodePods) -> Iterator[NodePods]:
    with bare.only():
        yield bare
