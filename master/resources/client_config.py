"""How the master reaches a server that extends it: a service or a URL, with the CA of the server. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Value
from api.meta.values import Int32

HTTPS_PORT = 443
MAX_URL_LENGTH = 2048
_URL_FORMAT = "desired format: https://host[/path]"


class ServiceReference(Value, frozen=True):
    """A service of the cluster. `port` is one of its ports, 443 if none is given. `path` is the path of requests."""

    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: Int32 | None = None


class WebhookClientConfig(Value, frozen=True):
    """A server for webhooks: exactly one of `url` and `service`.

    `ca_bundle` holds the certificates in PEM with which that of the server is verified; the certificates of the host
    are used if there are none.
    """

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: bytes = b""


def default_client_config(config: WebhookClientConfig) -> WebhookClientConfig:
    """Return the configuration with the default port of a service."""
    if config.service is None or config.service.port is not None:
        return config
    return replace(config, service=replace(config.service, port=HTTPS_PORT))


def check_client_config(path: str, config: WebhookClientConfig) -> Iterator[FieldError]:
    """Yield the errors of a configuration."""
    if (config.url is None) == (config.service is None):
        yield FieldError(path, "{}", "exactly one of url or service is required", MISSING)
        return
    if config.url is not None:
        yield from check_url(f"{path}.url", config.url)
    if config.service is not None:
        yield from check_service(f"{path}.service", config.service)


def check_url(path: str, url: str) -> Iterator[FieldError]:
    """Yield the errors of the URL of a server."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        yield FieldError(path, quoted(url), f"url must be a valid URL: {error}; {_URL_FORMAT}")
        return
    if len(url) > MAX_URL_LENGTH or any(letter <= " " or letter >= "\x7f" for letter in url):
        yield FieldError(path, quoted(url), f"url must be a valid URL of at most {MAX_URL_LENGTH} characters")
        return
    if parts.scheme != "https":
        yield FieldError(path, quoted(parts.scheme), f"'https' is the only allowed URL scheme; {_URL_FORMAT}")
    if not parts.hostname:
        yield FieldError(path, quoted(parts.netloc), f"host must be specified; {_URL_FORMAT}")
    if parts.username is not None or parts.password is not None:
        yield FieldError(path, '""', "user information is not permitted in the URL")
    if parts.fragment:
        yield FieldError(path, quoted(parts.fragment), "fragments are not permitted in the URL")
    if parts.query:
        yield FieldError(path, quoted(parts.query), "query parameters are not permitted in the URL")


def check_service(path: str, service: ServiceReference) -> Iterator[FieldError]:
    """Yield the errors of a reference to a service."""
    for name, value, syntax in (
        ("name", service.name, names.dns_1035_label_error),
        ("namespace", service.namespace, names.dns_label_error),
    ):
        if not value:
            yield FieldError(f"{path}.{name}", '""', f"service {name} is required", MISSING)
        elif error := syntax(value):
            yield FieldError(f"{path}.{name}", quoted(value), error)
    if service.port is not None and not 0 < service.port < 65536:
        yield FieldError(
            f"{path}.port", quoted(service.port), "port is not valid: must be between 1 and 65535, inclusive"
        )
    if service.path is not None:
        yield from _check_path(f"{path}.path", service.path)


def _check_path(path: str, url_path: str) -> Iterator[FieldError]:
    if not url_path or url_path == "/":
        return
    if not url_path.startswith("/"):
        yield FieldError(path, quoted(url_path), "must start with a '/'")
        return
    if len(url_path) > MAX_URL_LENGTH:
        yield FieldError(path, quoted(url_path), f"must be no more than {MAX_URL_LENGTH} characters")
        return
    for number, segment in enumerate(url_path.removesuffix("/")[1:].split("/")):
        if not segment:
            yield FieldError(path, quoted(url_path), f"segment[{number}] may not be empty")
        elif error := names.dns_subdomain_error(segment):
            yield FieldError(path, quoted(url_path), f"segment[{number}]: {error}")
