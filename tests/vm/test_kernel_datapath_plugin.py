"""The plugin that tells switches that forward in the kernel from those in user space."""

from __future__ import annotations

import pytest

from tests.vm.kernel_datapath import require_kernel

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
