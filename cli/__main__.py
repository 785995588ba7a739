"""`podlane`: administration of a cluster, and labs."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
from importlib.metadata import version
from pathlib import Path

from api.client.bootstrap import bootstrap_kubeconfig, create_bootstrap_token, node_kubeconfig
from api.client.client import ClientError
from api.client.discovery import fetch_verified
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.pki import keys
from cli import (
    ca,
    check,
    completion,
    image,
    kubeconfig,
    lab_kubeconfig,
    login,
    logout,
    network,
    object_names,
    pod,
    scc,
    why,
)
from cli import version as version_command
from cli.bundle import command as bundle
from cli.command import InputError, Parser, UsageError, add_command, positive_number, require_writable
from cli.doctor import command as doctor
from cli.join import command as join
from cli.join import reset
from cli.join.host import HostError
from cli.join.settings import BadSettings
from cli.node import command as node
from lab.down import bring_down, has_traces
from lab.load import build, load
from lab.process import LabError, Progress
from lab.topology import MAX_NODES, PLUGINS, REGISTRY, SIZE
from lab.up import Options, lab_up, running_lab, show_lab
from reconcile import atomic_file

STATE = Path(".lab")


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command. Returns one of EXIT_CODES."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.act(arguments)
    except (LabError, ClientError, BadKubeconfig, BadSettings, InputError, HostError, join.JoinError, OSError) as error:
        sys.stderr.write(f"podlane: {kubeconfig.sentence(error)}\n")
        return 1
    except UsageError as error:
        sys.stderr.write(f"podlane: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Completion and man pages are made from it."""
    parser: argparse.ArgumentParser = Parser(prog="podlane", description="Administration of a Podlane cluster.")
    parser.add_argument("--version", action="version", version=f"podlane {version('podlane')}")
    topics = parser.add_subparsers(metavar="TOPIC", required=True)
    _lab_commands(topics.add_parser("lab", help="a cluster on this machine"))
    version_command.add_arguments(
        add_command(topics, "version", "print the versions of this command and of the master", version_command.show)
    )
    login.add_arguments(add_command(topics, "login", "log in with a name and a password", login.login))
    login.add_kubeconfig_argument(add_command(topics, "logout", "end the token of a login", logout.logout))
    check.add_arguments(add_command(topics, "check", "validate manifests and report all errors", check.check))
    nodes = topics.add_parser("node", help="nodes of the cluster").add_subparsers(metavar="COMMAND", required=True)
    add = add_command(nodes, "add", "create a certificate and kubeconfig for a node", _node_add)
    add.add_argument("name", metavar="NAME", type=object_names.node)
    add.add_argument("--out", metavar="FILE", type=Path, help="file for the node's kubeconfig (standard output)")
    token = add_command(
        nodes, "token", "create a bootstrap token, and print the command for hosts to join", _node_token
    )
    token.add_argument(
        "--hours",
        metavar="HOURS",
        type=positive_number,
        default=24.0,
        help="hours until the token expires (%(default)g)",
    )
    token.add_argument(
        "--out", metavar="FILE", type=Path, help="write a kubeconfig with the token instead (bootstrapKubeconfig)"
    )
    leave = "make this host leave its cluster; configuration and commands stay"
    reset.add_arguments(add_command(nodes, "reset", leave, reset.reset_command))
    node.add_commands(nodes)
    for command in (add, token):
        kubeconfig.add_argument(command)
    image.add_commands(topics.add_parser("image", help="images of the nodes"))
    join.add_arguments(add_command(topics, "join", "make this host a node of a cluster", join.join_command))
    ca.add_commands(topics.add_parser("ca", help="the certificate authority of the cluster"))
    pod.add_commands(topics.add_parser("pod", help="static pods of this node"))
    network.add_commands(topics.add_parser("network", help="the pod network"))
    completion.add_arguments(add_command(topics, "completion", "print the completion script of a shell", _completion))
    why.add_arguments(add_command(topics, "why", "say why packets pass or are dropped", why.why))
    doctor.add_arguments(
        add_command(topics, "doctor", "find what is wrong with this host, and say how to mend it", doctor.doctor)
    )
    bundle.add_arguments(
        add_command(topics, "bundle", "collect an archive about this host for support, without secrets", bundle.bundle)
    )
    scc.add_commands(topics.add_parser("scc", help="security context constraints"))
    return parser


def _lab_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    up = add_command(commands, "up", "start a lab and show which pods reach each other", _lab_up)
    up.add_argument("--nodes", metavar="NODES", type=_nodes, help=f"number of nodes, 1 to {MAX_NODES} ({SIZE})")
    up.add_argument("--plugin", choices=PLUGINS, help=f"network plugin ({PLUGINS[0]})")
    internal = "let the nodes reach each other and this machine only"
    up.add_argument("--internal", action="store_const", const=True, help=internal)
    registry = f"run a registry at {REGISTRY} of this machine, for docker push and for pods"
    up.add_argument("--registry", action="store_const", const=True, help=registry)
    add_command(commands, "down", "stop the lab and remove everything that it created", _lab_down)
    add_command(commands, "status", "show the running lab", _lab_status)
    load = add_command(commands, "load", "put images of this machine onto every node", _lab_load)
    load.add_argument(
        "images", metavar="IMAGE", nargs="+", help="image of this machine's Docker, or a docker save file"
    )
    build = add_command(commands, "build", "build an image and put it onto every node", _lab_build)
    build.add_argument("folder", metavar="DIR", type=Path, help="folder with a Dockerfile")
    build.add_argument("-t", "--tag", metavar="NAME", required=True, help="name of the image, with a tag")
    print_kubeconfig = add_command(
        commands, "kubeconfig", "print the kubeconfig of the lab, or merge it", _lab_kubeconfig
    )
    lab_kubeconfig.add_arguments(print_kubeconfig)
    examine = add_command(
        commands, "doctor", "find what is wrong with a node of the lab, or with its master", _lab_doctor
    )
    examine.add_argument("name", metavar="NODE", nargs="?", default="node-1", help="node, or master (%(default)s)")
    doctor.add_output_argument(examine)


def _nodes(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_NODES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_NODES}")


def _lab_up(arguments: argparse.Namespace) -> int:
    return lab_up(STATE, Options(arguments.nodes, arguments.plugin, arguments.internal, arguments.registry))


def _lab_down(_: argparse.Namespace) -> int:
    if not has_traces(STATE):
        print("no lab is up here")
        return 0
    bring_down(STATE)
    print("the lab is gone")
    return 0


def _lab_status(_: argparse.Namespace) -> int:
    return show_lab()


def _lab_load(arguments: argparse.Namespace) -> int:
    load(running_lab(), arguments.images, Progress())
    return 0


def _lab_build(arguments: argparse.Namespace) -> int:
    build(running_lab(), arguments.folder, arguments.tag, Progress())
    return 0


def _lab_kubeconfig(arguments: argparse.Namespace) -> int:
    return lab_kubeconfig.run(arguments, STATE)


def _lab_doctor(arguments: argparse.Namespace) -> int:
    return doctor.lab_doctor(running_lab(), arguments.name, arguments.output)


def _completion(arguments: argparse.Namespace) -> int:
    sys.stdout.write(completion.script(build_parser(), arguments.shell))
    return 0


def _node_add(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        require_writable(arguments.out)
    text = asyncio.run(_node_text(kubeconfig.load(arguments.kubeconfig), arguments.name))
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    atomic_file.write(arguments.out, text.encode())
    print(f"{arguments.out}: copy it to the node {arguments.name} as /etc/podlane/node.kubeconfig")
    return 0


def _node_token(arguments: argparse.Namespace) -> int:
    administrator, life = kubeconfig.load(arguments.kubeconfig), datetime.timedelta(hours=arguments.hours)
    if arguments.out is None:
        print(asyncio.run(_join_line(administrator, life)))
        return 0
    require_writable(arguments.out)
    text = asyncio.run(_token_text(administrator, life))
    atomic_file.write(arguments.out, text.encode())
    print(f"{arguments.out}: machines join with --bootstrap-kubeconfig and this file, for {arguments.hours:g} hours")
    return 0


async def _join_line(administrator: Kubeconfig, life: datetime.timedelta) -> str:
    """Create a token, and return the command with which a host joins. Raises ClientError."""
    async with kubeconfig.connect(administrator) as client:
        ca = (await fetch_verified(administrator)).ca
        token = await create_bootstrap_token(client, life)
    hashes = " ".join(f"--ca-hash {key_hash}" for key_hash in keys.certificates_by_key_hash(ca))
    return f"podlane join {administrator.server} --token {token} {hashes}"


async def _token_text(administrator: Kubeconfig, life: datetime.timedelta) -> str:
    async with kubeconfig.connect(administrator) as client:
        return await bootstrap_kubeconfig(client, administrator, life)


async def _node_text(administrator: Kubeconfig, name: str) -> str:
    async with kubeconfig.connect(administrator) as client:
        return await node_kubeconfig(client, administrator, name)


if __name__ == "__main__":
    sys.exit(main())
