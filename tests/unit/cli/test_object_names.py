"""Arguments that name objects: what is refused before any request, and what is accepted."""

from __future__ import annotations

import argparse

import pytest

from cli.__main__ import build_parser, main

PROJECTS = ("", "/", "red/x", "Red", "-red", "a" * 64, "réd", "red\n")
NODES = ("", "/", "a/b", "Node", ".", "..", "node-1.", "a" * 254)
PODS = ("", "/", "red/", "/red", "red", "red/a/b", "Red/a", "re.d/a", "10.128.0", "red/a b")
SERVICES = ("", "/", "red/", "/web", "red/demo/x", "Red", "red/We b")
ENDPOINTS = ("", "/", " ", ".", "red/", "/red", "red/a/b", "Red/a", "a..b", "web.blue..", "::1")

ARGUMENTS = [
    ("network isolate -- {}", PROJECTS, ("red", "0red", "a" * 63)),
    ("network isolate red -- {}", PROJECTS, ("blue",)),
    ("network global -- {}", PROJECTS, ("red",)),
    ("network join --to red -- {}", PROJECTS, ("blue",)),
    ("network join red --to={}", PROJECTS, ("blue",)),
    ("scc explain pod.yaml --namespace={}", PROJECTS, ("red",)),
    ("node drain {}", NODES, ("node-1", "node-1.example.com", "10.0.0.1")),
    ("node remove {}", NODES, ("node-1",)),
    ("node add {}", NODES, ("node-1",)),
    ("join https://m:8443 --token=a --ca-hash=b --name={}", NODES, ("node-1",)),
    ("image load image --node={}", NODES, ("node-1",)),
    ("network services --node={}", NODES, ("node-1",)),
    ("network trace a b --from-outside --on={}", NODES, ("node-1",)),
    ("network trace a b --vnid=1 --from-tunnel={}", NODES, ("node-1", "10.0.0.1")),
    ("network services {}", SERVICES, ("red", "red/web")),
    ("network capture {}", PODS, ("red/a", "red/a.b-0", "10.128.0.2")),
    ("network trace {} 10.0.0.1", ENDPOINTS, ("red/a", "node-1", "10.0.0.1")),
    ("network trace 10.0.0.1 {}", ENDPOINTS, ("red/a", "node-1", "10.0.0.1")),
    ("why {} 10.0.0.1", ENDPOINTS, ("red/a", "node-1", "10.0.0.1", "outside")),
    ("why 10.0.0.1 {}", ENDPOINTS, ("red/a", "web", "web.blue", "web.blue.svc.cluster.local.")),
    ("scc explain pod.yaml --as={}", ("",), ("amy", "system:serviceaccount:red:a", "CN=Amy, O=x")),
    ("scc explain pod.yaml --as=amy --as-group={}", ("",), ("system:authenticated",)),
]


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, names, _ in ARGUMENTS for name in names], ids=repr
)
def test_names_that_no_object_has_are_refused(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word.format(name) for word in command.split()])
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    found = repr(name if len(name) <= 80 else f"{name[:77]}...") if name else "an empty name"
    assert f": found {found}; " in error
    assert "accepted" in error or "the name of a" in error


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, _, names in ARGUMENTS for name in names], ids=repr
)
def test_names_of_objects_are_accepted(command: str, name: str) -> None:
    assert build_parser().parse_args([word.format(name) for word in command.split()]).act


NAMED = {"PROJECT", "NODE", "POD", "SRC", "DST", "USER", "GROUP", "NAMESPACE", "NAMESPACE[/NAME]", "[NAMESPACE/]NAME"}


def test_every_argument_that_names_an_object_is_checked() -> None:
    unchecked, checked = [], 0

    def walk(parser: argparse.ArgumentParser, path: str) -> None:
        nonlocal checked
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    walk(command, f"{path} {name}")
            elif action.metavar in NAMED and path != " lab doctor":
                checked += 1
                if action.type is None:
                    unchecked.append(f"{path} {action.metavar}")

    walk(build_parser(), "")
    assert unchecked == []
    assert checked > 15
