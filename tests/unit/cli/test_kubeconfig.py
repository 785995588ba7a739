"""Which kubeconfig a command reads, and programs that give credentials."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from api.client.client import OtherAuthority, Unreachable
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from cli import kubeconfig
from cli.__main__ import main
from cli.lab_kubeconfig import NAME, merge
from lab.topology import SITE

V1 = "client.authentication.k8s.io/v1"


def write(file: Path, token: str = "", **user: Any) -> Path:
    """Write a kubeconfig."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "clusters": [{"name": "a", "cluster": {"server": "https://a"}}],
        "users": [{"name": "a", "user": user or {"token": token}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(kubeconfig, "ADMIN", str(tmp_path / "admin.kubeconfig"))
    monkeypatch.setattr(kubeconfig, "SITE", SimpleNamespace(run_dir=tmp_path / "work" / ".lab"))
    return tmp_path


def test_kubeconfigs_are_looked_for_in_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadKubeconfig, match=r"KUBECONFIG is not set, and there is no .*/home/\.kube/config, .*/\.lab/"):
        kubeconfig.load()
    write(home / "admin.kubeconfig", "admin")
    assert kubeconfig.load().token == "admin"
    write(home / "work" / ".lab" / "kubeconfig", "lab")
    assert kubeconfig.load().token == "lab"
    write(home / "home" / ".kube" / "config", "home")
    assert kubeconfig.load().token == "home"
    write(home / "second", "second")
    monkeypatch.setenv("KUBECONFIG", f":{home / 'missing'}:{home / 'second'}:")
    assert kubeconfig.load().token == "second"
    assert kubeconfig.load(str(write(home / "named", "named"))).token == "named"
    monkeypatch.setenv("KUBECONFIG", str(home / "missing"))
    with pytest.raises(BadKubeconfig, match="missing: No such file"):
        kubeconfig.load()
    monkeypatch.setenv("KUBECONFIG", "")
    assert kubeconfig.load().token == "home"


def test_a_lab_that_does_not_run_must_be_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home / "work" / ".lab" / "kubeconfig", "lab")
    running = home / "run"
    monkeypatch.setattr(kubeconfig, "SITE", SimpleNamespace(run_dir=running))
    with pytest.raises(BadKubeconfig, match=f"{file} is not of the running lab; --kubeconfig {file} accepts it"):
        kubeconfig.load()
    assert kubeconfig.load(str(file)).token == "lab"
    running.symlink_to(file.parent)
    assert kubeconfig.load().token == "lab"


PLUGIN = """#!/bin/sh
[ "$KUBERNETES_EXEC_INFO" ] && [ "$COLOR" = "$1" ] || exit 3
echo "{\\"kind\\": \\"ExecCredential\\", \\"apiVersion\\": \\"$2\\", \\"status\\": {\\"token\\": \\"from $1\\"}}"
"""


def plugin(folder: Path, text: str = PLUGIN, **changes: Any) -> Path:
    """Write a kubeconfig with a program beside it."""
    (folder / "plugin").write_text(text)
    (folder / "plugin").chmod(0o755)
    values = {"apiVersion": V1, "command": "./plugin", "args": ["red", V1], "env": [{"name": "COLOR", "value": "red"}]}
    return write(folder / "config", exec={**values, **changes})


def test_a_program_gives_the_token(tmp_path: Path) -> None:
    assert kubeconfig.load(str(plugin(tmp_path))).token == "from red"


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        (
            {"command": "podlane-no-such-program", "installHint": "apt install\n it"},
            "names the program 'podlane-no-such-program', which is not found; install it (apt install it)",
        ),
        ({"command": "./other"}, "names the program 'FOLDER/other', which is not found; install it"),
        ({"args": ["blue", V1]}, "FOLDER/plugin ended with 3; 0 is accepted"),
        (
            {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
            f"has the apiVersion 'client.authentication.k8s.io/v1alpha1'; {V1} or {V1}beta1 is accepted",
        ),
        (
            {"args": ["red", "v2"]},
            f"FOLDER/plugin prints something else; an ExecCredential of {V1} with a status is accepted",
        ),
        ({"text": "#!/bin/sh\necho hello"}, "FOLDER/plugin does not print JSON; an ExecCredential is accepted"),
        ({"text": "#!/no/such/shell\n"}, "FOLDER/plugin: No such file or directory; a program is accepted"),
        (
            {"text": f'#!/bin/sh\necho \'{{"apiVersion": "{V1}", "status": {{}}}}\''},
            "prints has no token and no clientCertificateData; one is needed",
        ),
    ],
)
def test_a_program_that_gives_no_token_is_one_sentence(changes: dict[str, Any], end: str, tmp_path: Path) -> None:
    file = plugin(tmp_path, **changes)
    with pytest.raises(BadKubeconfig) as raised:
        kubeconfig.load(str(file))
    sentence = str(raised.value)
    assert sentence.startswith(f"{file}: the user 'a': ")
    assert sentence.replace(f"{tmp_path}/./", "FOLDER/").replace(f"{tmp_path}/", "FOLDER/").endswith(end)
    assert "\n" not in sentence


LAB = Kubeconfig(f"https://{SITE.master}:8443", b"", token="lab")


def test_the_lab_is_merged_once_and_links_stay(tmp_path: Path) -> None:
    real, link = write(tmp_path / "real", "mine"), tmp_path / ".kube" / "config"
    link.parent.mkdir()
    link.symlink_to(real)
    assert merge(LAB, link, overwrite=False) == f"{link} has the context {NAME} of {LAB.server}; it is the current one"
    assert link.is_symlink()
    assert Kubeconfig.load(link).token == "lab"
    before = real.stat()
    assert merge(LAB, link, overwrite=False) == f"{link} has the context {NAME} of this lab, which is the current one"
    assert real.stat().st_mtime_ns == before.st_mtime_ns
    assert yaml.safe_load(real.read_text())["users"][0] == {"name": "a", "user": {"token": "mine"}}


def test_entries_of_another_server_are_replaced_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config"
    other = Kubeconfig("https://other", b"", token="other")
    merge(other, file, overwrite=False)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadKubeconfig) as raised:
        merge(LAB, file, overwrite=False)
    found = f"the cluster '{NAME}' of https://other, the context '{NAME}' of https://other"
    assert str(raised.value) == (
        f"{file} has {found}, not of the lab ({LAB.server}); --overwrite replaces what has the name '{NAME}'"
    )
    assert Kubeconfig.load(file).token == "other"
    assert f"in place of {found}; it is" in merge(LAB, file, overwrite=True)
    assert Kubeconfig.load(file).token == "lab"


def test_the_command_merges_the_lab_of_this_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = write(home / "work" / ".lab" / "kubeconfig", "lab")
    assert main(["lab", "kubeconfig"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["current-context"], printed["users"][0]["user"]) == (NAME, {"token": "lab"})
    assert main(["lab", "kubeconfig", "--merge"]) == 0
    assert kubeconfig.load().token == "lab"
    monkeypatch.setenv("KUBECONFIG", f"{home / 'first'}:{home / 'second'}")
    assert main(["lab", "kubeconfig", "--merge"]) == 0
    assert ((home / "first").exists(), (home / "second").exists()) == (True, False)
    (home / "first").write_text("- no kubeconfig")
    assert main(["lab", "kubeconfig", "--merge"]) == 1
    assert capsys.readouterr().err == (
        f"podlane: {home / 'first'}: not a kubeconfig but a list; clusters, users and contexts are accepted\n"
    )
    assert lab.exists()


@pytest.mark.parametrize("name", ["kubeconfig", "users/red.kubeconfig"])
def test_files_of_the_lab_are_not_merged_into(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / "work" / ".lab" / "kubeconfig", "lab")
    own = write(home / "work" / ".lab" / name, "own")
    before, token = own.read_bytes(), Kubeconfig.load(home / "work" / ".lab" / "kubeconfig").token
    monkeypatch.setenv("KUBECONFIG", str(own))
    assert main(["lab", "kubeconfig", "--merge"]) == 0
    assert own.read_bytes() == before
    assert Kubeconfig.load(home / "home" / ".kube" / "config").token == token
    assert f"{own} of KUBECONFIG is a file of the lab and stays as it is\n" in capsys.readouterr().out
    monkeypatch.setenv("KUBECONFIG", f"{own}:{home / 'mine'}")
    assert main(["lab", "kubeconfig", "--merge"]) == 0
    assert Kubeconfig.load(home / "mine").token == token


@pytest.mark.skipif(os.geteuid() != 0, reason="root uses the kubeconfig of the user of the master")
@pytest.mark.parametrize("name", ["exec", "tokenFile", "client-key"])
def test_kubeconfig_of_the_masters_user_names_no_programs_and_files_for_root(home: Path, name: str) -> None:
    program, secret = home / "program", home / "of-root"
    program.write_text(f"#!/bin/sh\ntouch {home}/ran\n")
    program.chmod(0o755)
    secret.write_text("token-of-root")
    users: dict[str, dict[str, Any]] = {
        "exec": {"exec": {"apiVersion": V1, "command": str(program)}},
        "tokenFile": {"tokenFile": str(secret)},
        "client-key": {"client-key": str(secret)},
    }
    admin = write(home / "admin.kubeconfig", **users[name])
    if name == "tokenFile":
        assert kubeconfig.load().token == "token-of-root"
    os.chown(admin, 65534, 65534)
    with pytest.raises(BadKubeconfig, match="belongs to user 65534, and names a program or other files"):
        kubeconfig.load()
    assert not (home / "ran").exists()
    os.chown(write(admin, "admin"), 65534, 65534)
    assert kubeconfig.load().token == "admin"


def test_a_certificate_of_another_authority_names_the_command_for_labs() -> None:
    other = "https://m:8443: its certificate is of another authority than that of the kubeconfig"
    hint = "for a lab, `podlane lab kubeconfig --merge` writes the right one"
    assert kubeconfig.sentence(OtherAuthority(other)) == f"{other}; {hint}"
    assert kubeconfig.sentence(Unreachable("https://m:8443 does not answer")) == "https://m:8443 does not answer"


@pytest.mark.parametrize(("command", "code"), [("version", 1), ("why red/a red/b", 3), ("network status", 1)])
def test_commands_say_the_same_of_a_master_that_does_not_answer(
    command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubeconfig, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        file = tmp_path / "config"
        file.write_text(Kubeconfig(server, b"", token="t").text("a", "a"))
        assert main([*command.split(), f"--kubeconfig={file}"]) == code
    assert capsys.readouterr().err == f"podlane: {server} does not answer in time\n"
