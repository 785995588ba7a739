"""Kubeconfig files: the server and the credentials of the current context."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_USER_FILES = ("client-certificate", "client-key", "tokenFile")
_SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
"""The lists of a kubeconfig, and the field of an entry that has its values."""


class BadKubeconfig(Exception):
    """A kubeconfig that cannot be used. The text names the file, the entry, and what is accepted."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints the credentials of a user (client.authentication.k8s.io).

    `where` is the entry of the kubeconfig, as errors name it. `folder` is that of the kubeconfig: a command with a
    slash is relative to it.
    """

    where: str
    folder: Path
    api_version: str
    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    install_hint: str


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The server and the credentials of one context.

    `server` is an https URL without a trailing slash. `ca`, `certificate` and `key` are PEM. `server_name` is the name
    in the server's certificate, if it is not that of the URL. `insecure` accepts any certificate. `source` is the file
    that was read, None if several were; `files` are that file and the files that it refers to. `cluster_entry` and
    `user_entry` are the entries that were read, as errors name them. A user with an `exec_plugin` has no credentials
    before that has run.
    """

    server: str
    ca: bytes
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    server_name: str = ""
    insecure: bool = False
    source: Path | None = None
    files: tuple[Path, ...] = ()
    cluster_entry: str = ""
    user_entry: str = ""
    exec_plugin: ExecPlugin | None = None

    @classmethod
    def load(cls, path: Path | str) -> Kubeconfig:
        """Read a file as kubectl does; paths inside it are relative to it. Raises BadKubeconfig."""
        return cls.load_merged((Path(path),))

    @classmethod
    def load_merged(cls, paths: Sequence[Path]) -> Kubeconfig:
        """Read files as kubectl merges them. Raises BadKubeconfig.

        The first file that has an entry of a name, or a current context, decides. Of several files, missing ones are
        ignored.
        """
        existing = [path for path in paths if path.exists()] if len(paths) > 1 else paths
        if not existing:
            raise BadKubeconfig(f"none of the files {', '.join(map(str, paths))} exists; one kubeconfig is needed")
        documents = [_Document.read(path) for path in existing]
        context = _current_context(documents)
        cluster = _find(documents, "clusters", context.required("cluster"), context)
        user = _find(documents, "users", context.required("user"), context)
        if user.values.get("auth-provider"):
            raise BadKubeconfig(f"{user} has an auth-provider; a certificate, a token, a tokenFile or exec is accepted")
        server = cluster.required("server")
        if not server.startswith(("https://", "http://")):
            raise BadKubeconfig(f"{cluster}: server is {server!r}; https://HOST:PORT is accepted")
        one_file = len(existing) == 1
        referenced = (cluster.path("certificate-authority"), *(user.path(key) for key in _USER_FILES))
        return cls(
            server=server.rstrip("/"),
            ca=cluster.data("certificate-authority"),
            certificate=user.data("client-certificate"),
            key=user.data("client-key"),
            token=_token(user),
            server_name=cluster.text("tls-server-name"),
            insecure=bool(cluster.values.get("insecure-skip-tls-verify")),
            source=existing[0] if one_file else None,
            files=(existing[0], *(path for path in referenced if path)) if one_file else (),
            cluster_entry=str(cluster),
            user_entry=str(user),
            exec_plugin=_exec_plugin(user),
        )

    def file_versions(self) -> tuple[tuple[int, int], ...]:
        """Return modification time and inode of each file; they differ if a file was written. Raises OSError."""
        states = (file.stat() for file in self.files)
        return tuple((state.st_mtime_ns, state.st_ino) for state in states)

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts only the cluster's CA and has the client certificate. Raises BadKubeconfig."""
        cluster, user = self.cluster_entry or self.server, self.user_entry or self.server
        try:
            context = ssl.create_default_context(cadata=self.ca.decode())
        except (ssl.SSLError, ValueError):
            raise BadKubeconfig(f"{cluster}: certificate-authority is no certificate; PEM is accepted") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            try:
                self._load_client_certificate(context)
            except (ssl.SSLError, ValueError) as error:
                raise BadKubeconfig(f"{user}: {self._client_certificate_problem(error)}") from None
        elif self.key:
            raise BadKubeconfig(f"{user} has a client-key and no client-certificate; both or neither are accepted")
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Two files: each value may be a kubelet's file with certificate and key, and a chain must not have a
            # certificate twice.
            certificate_file = Path(folder) / "client.crt"
            key_file = Path(folder) / "client.key"
            for file, data in ((certificate_file, self.certificate), (key_file, self.key)):
                file.touch(mode=0o600)
                file.write_bytes(data)
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate_file, key_file, password="")

    def _client_certificate_problem(self, error: Exception) -> str:
        try:
            ssl.create_default_context(cadata=self.certificate.decode())
        except (ssl.SSLError, ValueError):
            return "client-certificate is no certificate; PEM is accepted"
        if not self.key:
            return "client-key is missing; the key of client-certificate is needed"
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            return "client-certificate and client-key do not go together; the certificate's key is accepted"
        return "client-key is no key; PEM without a password is accepted"

    def with_client_certificate(self, certificate: bytes, key: bytes) -> str:
        """Return the file's text with another certificate and key of the current user. Raises BadKubeconfig."""
        assert self.source is not None
        document = _Document.read(self.source)
        context = _current_context([document])
        user = _find([document], "users", context.required("user"), context)
        user.entry["user"] = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return yaml.safe_dump(document.values, sort_keys=False)

    def with_authority(self, ca: bytes) -> str:
        """Return the file's text with other authorities of the current cluster (PEM). Raises BadKubeconfig."""
        assert self.source is not None
        document = _Document.read(self.source)
        context = _current_context([document])
        entry = _find([document], "clusters", context.required("cluster"), context).entry
        values = {key: value for key, value in entry["cluster"].items() if key != "certificate-authority"}
        entry["cluster"] = {**values, "certificate-authority-data": _base64(ca)}
        return yaml.safe_dump(document.values, sort_keys=False)

    def without_token(self) -> str:
        """Return the file's text without the token of the current user, whichever users have it. Raises BadKubeconfig.

        Other entries stay, and so does a file that the token was read from.
        """
        assert self.source is not None
        document = _Document.read(self.source)
        for entry in document.section("users"):
            user = _Entry(document, "users", entry)
            if self.token and _token(user) == self.token:
                entry["user"] = {key: value for key, value in user.values.items() if key not in ("token", "tokenFile")}
        return yaml.safe_dump(document.values, sort_keys=False)

    def text(self, cluster: str, user: str) -> str:
        """Return the text of a kubeconfig file with inline credentials."""
        return yaml.safe_dump(self._document(cluster, user), sort_keys=False)

    def _document(self, cluster: str, user: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": self._cluster()}],
            "users": [{"name": user, "user": self._credentials()}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }

    def merged_into(self, text: str | bytes, cluster: str, user: str) -> str:
        """Return the text of a kubeconfig file with this cluster, user and context as the current ones.

        Other entries stay. Raises BadKubeconfig.
        """
        document = _Document.parse(text, Path(), "")
        new = self._document(cluster, user)
        for section in _SECTIONS:
            names = {entry["name"] for entry in new[section]}
            kept = [entry for entry in document.section(section) if entry["name"] not in names]
            new[section] = kept + new[section]
        return yaml.safe_dump({**document.values, **new}, sort_keys=False)

    def conflicts(self, text: str | bytes, cluster: str, user: str) -> tuple[str, ...]:
        """Return the entries that `merged_into` would replace although they are those of another server.

        Raises BadKubeconfig.
        """
        document = _Document.parse(text, Path(), "")
        servers = {
            entry["name"]: _Entry(document, "clusters", entry).text("server") for entry in document.section("clusters")
        }
        others = {name: server for name, server in servers.items() if server.rstrip("/") != self.server}
        found = [f"the cluster {name!r} of {server}" for name, server in others.items() if name == cluster]
        for entry in document.section("contexts"):
            context = _Entry(document, "contexts", entry)
            server = others.get(context.text("cluster"), "")
            if server and entry["name"] == cluster:
                found.append(f"the context {cluster!r} of {server}")
            elif server and context.text("user") == user:
                found.append(f"the user {user!r} of {server}")
        return tuple(found)

    def _cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = {"server": self.server}
        if self.ca:
            cluster["certificate-authority-data"] = _base64(self.ca)
        if self.server_name:
            cluster["tls-server-name"] = self.server_name
        if self.insecure:
            cluster["insecure-skip-tls-verify"] = True
        return cluster

    def _credentials(self) -> dict[str, Any]:
        if self.token:
            return {"token": self.token}
        return {"client-certificate-data": _base64(self.certificate), "client-key-data": _base64(self.key)}


class _Loader(yaml.SafeLoader):
    """Reads dates as text, so that entries of others are written as they were read."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class _Document:
    """A kubeconfig file. `where` begins the errors about it."""

    path: Path
    where: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _Document:
        """Read a file. Raises BadKubeconfig."""
        return cls.parse(_read(path, str(path)), path, f"{path}: ")

    @classmethod
    def parse(cls, text: str | bytes, path: Path, where: str) -> _Document:
        """Parse the text of a kubeconfig; the empty text is an empty one. Raises BadKubeconfig."""
        try:
            values = yaml.load(text, _Loader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error).partition("\n")[0]
            raise BadKubeconfig(f"{where}not YAML ({line}); a kubeconfig is accepted") from None
        if values is not None and not isinstance(values, dict):
            raise BadKubeconfig(
                f"{where}not a kubeconfig but {_kind(values)}; clusters, users and contexts are accepted"
            )
        return cls(path, where, values or {})

    def section(self, name: str) -> list[dict[str, Any]]:
        """Return the entries of a list. Raises BadKubeconfig."""
        entries = self.values.get(name) or []
        if not isinstance(entries, list):
            raise BadKubeconfig(f"{self.where}{name} is {_kind(entries)}; a list is accepted")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise BadKubeconfig(f"{self.where}{name}[{number}] is {_kind(entry)}; a mapping is accepted")
            if not isinstance(entry.get("name"), str):
                raise BadKubeconfig(f"{self.where}{name}[{number}] has no name; a text is accepted")
        return entries


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a kubeconfig. As text: the file, the kind of the entry and its name."""

    document: _Document
    section: str
    entry: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.document.where}the {_SECTIONS[self.section]} {self.entry['name']!r}"

    @property
    def values(self) -> dict[str, Any]:
        """What the entry says. Raises BadKubeconfig."""
        values = self.entry.get(_SECTIONS[self.section]) or {}
        if not isinstance(values, dict):
            raise BadKubeconfig(f"{self} is {_kind(values)}; a mapping is accepted")
        return values

    def text(self, key: str) -> str:
        """Return a text, empty if there is none. Raises BadKubeconfig, which does not show the value."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise BadKubeconfig(f"{self}: {key} is {_kind(value)}; a text is accepted (perhaps quotes are missing)")
        return value or ""

    def required(self, key: str) -> str:
        """Return a text. Raises BadKubeconfig if there is none."""
        text = self.text(key)
        if not text:
            raise BadKubeconfig(f"{self} has no {key}; one is needed")
        return text

    def path(self, key: str) -> Path | None:
        """Return the file that an entry names."""
        text = self.text(key)
        return self.document.path.parent / text if text else None

    def data(self, key: str) -> bytes:
        """Return inline data, or the content of the named file. Raises BadKubeconfig."""
        inline = self.text(f"{key}-data")
        if inline:
            try:
                return base64.b64decode("".join(inline.split()), validate=True)
            except (binascii.Error, ValueError) as error:
                problem = f"{self}: {key}-data is not base64 ({error}); base64 of PEM is accepted"
                raise BadKubeconfig(problem) from None
        path = self.path(key)
        return b"" if path is None else _read(path, f"{self}: {key} {path}")


def _read(path: Path, where: str) -> bytes:
    """Return the content of a file. Raises BadKubeconfig."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadKubeconfig(f"{where}: {reason}; a readable file is accepted") from None


def _current_context(documents: Sequence[_Document]) -> _Entry:
    """Return the current context: that of the first file that names one. Raises BadKubeconfig."""
    for document in documents:
        name = document.values.get("current-context")
        if name and not isinstance(name, str):
            raise BadKubeconfig(f"{document.where}current-context is {_kind(name)}; a text is accepted")
        if name:
            return _find(documents, "contexts", name, f"{document.where}current-context")
    where = ", ".join(str(document.path) for document in documents)
    raise BadKubeconfig(f"{where}: current-context is missing; {_known(documents, 'contexts')}")


def _find(documents: Sequence[_Document], section: str, name: str, named_by: object) -> _Entry:
    """Return the first entry of a name. Raises BadKubeconfig."""
    for document in documents:
        for entry in document.section(section):
            if entry["name"] == name:
                return _Entry(document, section, entry)
    missing = f"the {_SECTIONS[section]} {name!r}, which does not exist"
    raise BadKubeconfig(f"{named_by} names {missing}; {_known(documents, section)}")


def _known(documents: Sequence[_Document], section: str) -> str:
    """Return which names of a section are accepted."""
    names = [repr(entry["name"]) for document in documents for entry in document.section(section)]
    if names:
        return f"{' or '.join(names)} is accepted"
    return f"there are no {section}, and a file with a cluster, a user and a context is accepted"


def _token(user: _Entry) -> str:
    token_file = user.path("tokenFile")
    if token_file is None:
        return user.text("token")
    try:
        return _read(token_file, f"{user}: tokenFile {token_file}").decode("ascii").strip()
    except UnicodeDecodeError:
        raise BadKubeconfig(f"{user}: tokenFile {token_file} has no token; ASCII text is accepted") from None


def _exec_plugin(user: _Entry) -> ExecPlugin | None:
    values = user.values.get("exec")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise BadKubeconfig(f"{user}: exec is {_kind(values)}; a mapping is accepted")
    entry = _Entry(user.document, "users", {"name": user.entry["name"], "user": values})
    arguments = values.get("args") or []
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise BadKubeconfig(f"{user}: args of exec is not a list of texts; for example [token, --quiet] is accepted")
    return ExecPlugin(
        where=str(user),
        folder=user.document.path.parent,
        api_version=entry.required("apiVersion"),
        command=entry.required("command"),
        arguments=tuple(arguments),
        environment=tuple(_environment(user, values.get("env") or [])),
        install_hint=entry.text("installHint"),
    )


def _environment(user: _Entry, variables: object) -> Iterator[tuple[str, str]]:
    for variable in variables if isinstance(variables, list) else [None]:
        pair = (variable.get("name"), variable.get("value")) if isinstance(variable, dict) else (None, None)
        if not isinstance(pair[0], str) or not isinstance(pair[1], str):
            raise BadKubeconfig(f"{user}: env of exec is not a list of name and value; texts are accepted")
        yield pair[0], pair[1]


def _kind(value: object) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def kubeconfig_problems(setting: str, file: str) -> Iterator[str]:
    """Yield what is wrong with the kubeconfig that a setting of a daemon names."""
    try:
        kubeconfig = Kubeconfig.load(file)
        kubeconfig.ssl_context()
    except BadKubeconfig as error:
        yield f"{setting}: {error}"
    else:
        if kubeconfig.exec_plugin:
            yield f"{setting}: {kubeconfig.user_entry} has exec; a certificate, a token or a tokenFile is accepted"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
