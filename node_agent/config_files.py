"""Judges the files that the settings of the node agent name."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from api.client.kubeconfig import kubeconfig_problems
from node_agent.config import Settings
from reconcile.config_document import unreadable_file


def file_problems(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the files that exist before the agent starts.

    With a bootstrap kubeconfig the agent writes `kubeconfig` itself. Manifests may come and go.
    """
    if settings.bootstrap_kubeconfig and not Path(settings.kubeconfig).exists():
        yield from kubeconfig_problems("bootstrapKubeconfig", settings.bootstrap_kubeconfig)
    else:
        yield from kubeconfig_problems("kubeconfig", settings.kubeconfig)
    yield from unreadable_file("resolvConf", Path(settings.resolv_conf))
    if settings.client_ca_file:
        yield from _authority_problems("clientCaFile", Path(settings.client_ca_file))
    if settings.tls_cert_file:
        yield from _key_pair_problems(settings)


def _authority_problems(setting: str, file: Path) -> Iterator[str]:
    unreadable = tuple(unreadable_file(setting, file))
    yield from unreadable
    if not unreadable:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        except (ssl.SSLError, ValueError) as error:
            yield f"{setting}: {file}: found no certificates: {error}; CA certificates are accepted as PEM"


def _key_pair_problems(settings: Settings) -> Iterator[str]:
    certificate, key = Path(settings.tls_cert_file), Path(settings.tls_private_key_file)
    unreadable = (*unreadable_file("tlsCertFile", certificate), *unreadable_file("tlsPrivateKeyFile", key))
    yield from unreadable
    if not unreadable:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError) as error:
            accepted = "a certificate and its key without a password are accepted as PEM"
            yield f"tlsCertFile, tlsPrivateKeyFile: found files that do not go together: {error}; {accepted}"
