"""Flows as values and as the text of ovs-ofctl."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from sdn.model.flow import Flow, Goto, Output, SetField
from sdn.model.match import ETH_DST, IN_PORT, Match, dst_port, field_equals, in_port, ip


def test_goto_is_the_last_action_and_forward_only() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        Flow(20, 1, Match(), (Goto(20),))
    with pytest.raises(ValueError, match="not the last"):
        Flow(0, 1, Match(), (Goto(10), Output(1)))


def test_flow_text_is_accepted_by_ovs_ofctl() -> None:
    flow = Flow(0, 7, dst_port(17, 4789) & in_port(3), (SetField(ETH_DST, 0x0A580A800001), Output(2)))
    assert str(flow) == (
        "table=0,priority=7,ip,in_port=3,nw_proto=17,udp_dst=4789 actions=set_field:0a:58:0a:80:00:01->eth_dst,output:2"
    )
    assert str(Flow(0, 0, Match())) == "table=0,priority=0 actions=drop"
    assert str(ip(src=IPv4Network("10.0.0.0/8"))) == "ip,nw_src=10.0.0.0/8"
    assert field_equals(IN_PORT, 5) == in_port(5)
