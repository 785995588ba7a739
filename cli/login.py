"""`podlane login`: gets a token for a name and a password, and writes a kubeconfig with it."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.client.oauth_login import request_token
from cli.command import UsageError, require_writable
from cli.kubeconfig import writable_file
from reconcile import atomic_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane login`."""
    parser.add_argument("server", metavar="URL", nargs="?", default="", help="the master (that of the kubeconfig)")
    parser.add_argument("-u", "--username", metavar="NAME", help="name of the user (asked for)")
    parser.add_argument("-p", "--password", metavar="PASSWORD", help="password (asked for; others see the argument)")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.add_argument("--certificate-authority", metavar="FILE", help="CA certificate of the master, as PEM")
    add_kubeconfig_argument(parser)


def add_kubeconfig_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the kubeconfig of a user."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="kubeconfig to write (the first of KUBECONFIG, or ~/.kube/config)",
    )


def login(arguments: argparse.Namespace) -> int:
    """Log in, and add the user to the kubeconfig. Returns the exit code.

    Raises UsageError, BadKubeconfig and ClientError.
    """
    file = Path(arguments.kubeconfig) if arguments.kubeconfig else writable_file(os.environ)
    server = _server(arguments, file)
    user = arguments.username or _asked(input, "Username: ", "-u NAME")
    if ":" in user:
        raise UsageError(f"the name is {user!r}; names without a colon are accepted (RFC 7617)")
    password = _password(arguments)
    file.parent.mkdir(parents=True, exist_ok=True)
    require_writable(file.resolve())
    token = asyncio.run(request_token(server, user, password))
    name = f"{user}/{_cluster_name(server.server)}"
    existing = file.read_bytes() if file.exists() else b""
    try:
        text = replace(server, token=token).merged_into(existing, name, name)
    except BadKubeconfig as error:
        raise BadKubeconfig(f"{file}: {error}") from error
    atomic_file.write(file.resolve(), text.encode())  # a link stays a link
    sys.stdout.write(f"{user} is logged in at {server.server}; {file} has the token\n")
    return 0


def _password(arguments: argparse.Namespace) -> str:
    """Return the password of an option, of standard input, or the one that the user types. Raises UsageError."""
    if not arguments.password_stdin:
        given: str | None = arguments.password
        return given if given is not None else _asked(getpass.getpass, "Password: ", "--password-stdin")
    if arguments.password is not None:
        raise UsageError("-p and --password-stdin are given; one of them is accepted")
    if not arguments.username:
        raise UsageError("--password-stdin needs -u NAME")
    try:
        return sys.stdin.buffer.read().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError("standard input is not text; a password in UTF-8 is accepted") from None


def _server(arguments: argparse.Namespace, file: Path) -> Kubeconfig:
    """Return the master to log in at, without credentials."""
    if arguments.server:
        server = arguments.server.rstrip("/")
        if not _is_server(server):
            # The URL is not repeated: it may have a password.
            raise UsageError("the URL is not of the form https://HOST:PORT, which is accepted")
        if arguments.certificate_authority:
            return Kubeconfig(server, _ca(arguments.certificate_authority))
        known = Kubeconfig.load(file) if file.exists() else None
        if known is None or known.server != server:
            raise UsageError("--certificate-authority is missing: the file with the CA certificate of the master")
        return Kubeconfig(server, known.ca, server_name=known.server_name)
    try:
        existing = Kubeconfig.load(file)
    except BadKubeconfig as error:
        raise UsageError(f"no URL is given, and {error}") from error
    return Kubeconfig(existing.server, existing.ca, server_name=existing.server_name)


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False


def _asked(ask: Callable[[str], str], prompt: str, option: str) -> str:
    """Return what the user types. Raises UsageError at the end of standard input."""
    try:
        return ask(prompt)
    except EOFError:
        raise UsageError(f"{prompt.strip(': ')}: standard input has ended; {option} is accepted") from None


def _ca(name: str) -> bytes:
    """Return the CA certificate in a file. Raises UsageError."""
    try:
        ca = Path(name).read_bytes()
        ssl.create_default_context(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        ca = b""
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; a file with a CA certificate is accepted") from None
    if not ca.strip():
        raise UsageError(f"{name} has no certificate; a CA certificate in PEM is accepted")
    return ca


def _cluster_name(server: str) -> str:
    """Return the name of a cluster in a kubeconfig, as `oc login` forms it."""
    return server.removeprefix("https://").replace(".", "-")
