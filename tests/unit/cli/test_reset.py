"""`podlane node reset`: what it needs before it changes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.__main__ import main
from cli.command import UsageError
from cli.join import host as hosts
from cli.join.command import JoinError
from cli.join.host import Host, HostError
from cli.join.reset import reset

KUBECONFIG, LOCK = "etc/podlane/node.kubeconfig", "run/podlane-join.lock"


class NodeHost(Host):
    """A host with the files of a node. `resets` counts the runs of the script that removes them."""

    def __init__(self, root: Path, *, is_root: bool = True) -> None:
        super().__init__(root)
        self._is_root = is_root
        self.resets = 0
        self.write(f"/{KUBECONFIG}", "identity")

    def is_root(self) -> bool:
        return self._is_root

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "remove-node"
    file.touch()
    monkeypatch.setattr(hosts, "REMOVE_NODE", file)
    return file


def ignore(_: str) -> None:
    """Show no progress."""


def test_reset_needs_yes(tmp_path: Path) -> None:
    host = NodeHost(tmp_path)
    with pytest.raises(UsageError, match="pods, network, state and identity are removed; --yes does it"):
        reset(host, ignore, is_confirmed=False)
    assert (host.resets, (tmp_path / KUBECONFIG).exists(), (tmp_path / LOCK).exists()) == (0, True, False)
    reset(host, ignore, is_confirmed=True)
    assert (host.resets, (tmp_path / KUBECONFIG).exists()) == (1, False)


def test_reset_of_a_host_that_is_no_node_says_so_and_leaves_nothing(tmp_path: Path, script: Path) -> None:
    script.unlink()
    host, shown = NodeHost(tmp_path), list[str]()
    with pytest.raises(HostError, match=r"no node is installed on this host: there is no .*remove-node; install"):
        reset(host, shown.append, is_confirmed=True)
    assert (host.resets, shown, (tmp_path / LOCK).exists()) == (0, [], False)


def test_reset_needs_root(tmp_path: Path) -> None:
    host = NodeHost(tmp_path, is_root=False)
    with pytest.raises(JoinError, match="run it as root"):
        reset(host, ignore, is_confirmed=True)
    assert host.resets == 0


def test_the_command_without_yes_is_wrong_use(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Host, "is_root", lambda _: True)
    monkeypatch.setattr(Host, "exclusive", None)
    assert main(["node", "reset"]) == 2
    assert capsys.readouterr().err.startswith("podlane: this host would leave its cluster")
