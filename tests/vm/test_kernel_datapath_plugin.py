"""The plugin that tells switches that forward in the kernel from those in user space, and which tests it watches."""

from __future__ import annotations

import pytest

from tests.vm.kernel_datapath import LEFT_OUT, PARTS, require_kernel
from tests.vm.machine import ROOT

SHOWN = """\
{type}@ovs-{type}:
  lookups: hit:230 missed:41 lost:0
  flows: 12
  masks: hit:612 total:9 hit/pkt:2.26
  port 0: ovs-{type} (internal)
"""


def test_packets_of_a_switch_that_forwards_in_the_kernel_are_counted() -> None:
    assert require_kernel("n1", SHOWN.format(type="system")) == 271


@pytest.mark.parametrize("shown", ["", SHOWN.format(type="netdev"), f"{SHOWN}{SHOWN}".format(type="system") + "x@y:\n"])
def test_switch_that_forwards_in_user_space_is_reported(shown: str) -> None:
    with pytest.raises(AssertionError, match="n1: "):
        require_kernel("n1", shown)


def test_every_test_of_isolation_runs_on_the_kernel_datapath() -> None:
    """It is in a part, and in one only."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/net/isolation").glob("test_*.py"))
    assert sorted(word for part in PARTS.values() for word in part if word.startswith("tests/net/isolation")) == files
    assert not set(LEFT_OUT) & set(files)
