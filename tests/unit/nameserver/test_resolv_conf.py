"""Upstream servers from resolv.conf."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameserver import resolv_conf
from nameserver.resolv_conf import ResolvConf, Upstream, nameservers

TEXT = """
# a comment
nameserver 192.0.2.1
nameserver   2001:db8::53  # another
nameserver
nameserver router.lan
search lan
options ndots:2
nameserver 10.128.0.1
"""


def test_resolv_conf_yields_nameserver_addresses_in_order() -> None:
    assert list(nameservers(TEXT)) == [Upstream("192.0.2.1"), Upstream("2001:db8::53"), Upstream("10.128.0.1")]


def test_resolv_conf_omits_the_servers_own_addresses(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text(TEXT)
    assert ResolvConf(path, ("10.128.0.1",))() == (Upstream("192.0.2.1"), Upstream("2001:db8::53"))


def test_changed_resolv_conf_is_read_again_and_a_missing_one_means_no_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ResolvConf(tmp_path / "resolv.conf")
    assert config() == ()
    config.path.write_text("nameserver 192.0.2.1\n")
    assert config() == (), "it is not looked for with every question"
    monkeypatch.setattr(resolv_conf, "READ_INTERVAL_SECONDS", 0)
    assert config() == (Upstream("192.0.2.1"),)
