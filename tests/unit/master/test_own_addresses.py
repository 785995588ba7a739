"""The address of a master must be one of its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.__main__ import main
from master.own_addresses import is_own, own_addresses


def test_addresses_of_this_host() -> None:
    addresses = own_addresses()
    assert all(map(is_own, (*addresses, "127.0.0.1")))
    assert not any(address.startswith("127.") for address in addresses)
    for other in ("192.0.2.1", "0.0.0.0"):
        assert not is_own(other)


def test_master_with_a_foreign_address_stops_and_says_which_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    flags = ["--config=/dev/null", "--advertise-address=192.0.2.1", f"--state-dir={state}"]
    monkeypatch.setattr("sys.argv", ["podlane-master", *flags])
    assert main() == 2
    accepted = f"an address of this host is accepted: {', '.join(own_addresses())}"
    assert capsys.readouterr().err == f"podlane-master: advertiseAddress: found '192.0.2.1'; {accepted}\n"
    assert not state.exists()
