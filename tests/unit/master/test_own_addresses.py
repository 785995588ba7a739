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


@pytest.mark.parametrize("check", [(), ("--check",)], ids=["start", "check"])
def test_master_with_a_foreign_address_stops_and_says_which_it_has(
    check: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    flags = ["--config=/dev/null", f"--state-dir={state}", *check]
    monkeypatch.setattr("sys.argv", ["podlane-master", *flags, "--advertise-address=192.0.2.1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    accepted = f"an address of this host is accepted: {', '.join(own_addresses())}"
    assert capsys.readouterr().err == f"podlane-master: advertiseAddress: found '192.0.2.1'; {accepted}\n"
    assert not state.exists()


def test_check_accepts_an_address_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv", ["podlane-master", "--config=/dev/null", "--check", "--advertise-address=127.0.0.1"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
