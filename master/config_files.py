"""Reads and judges the files that the settings of podlane-master name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from master.audit.policy import DEFAULT_POLICY, InvalidPolicy, Policy, parse_policy
from master.auth.identity_providers import config as identity_providers
from master.auth.identity_providers.htpasswd import HTPasswdProvider
from master.auth.identity_providers.provider import IdentityProvider
from master.config import MasterConfig
from master.registry.projects import load_policy
from reconcile.config_document import BadDocument, read_document
from reconcile.errors import Refused


def load_audit_policy(config: MasterConfig) -> Policy:
    """Return the policy in the configured file, or the default one. Raises Refused with one line for each problem."""
    file = config.audit_policy_file
    if not file:
        return DEFAULT_POLICY
    try:
        return parse_policy(read_document(Path(file)))
    except BadDocument as error:
        raise Refused(f"auditPolicyFile: {error}") from error
    except InvalidPolicy as error:
        raise Refused("\n".join(f"auditPolicyFile: {file}: {text}" for text in error.problems)) from error


def load_providers(config: MasterConfig) -> tuple[IdentityProvider, ...]:
    """Return the configured identity providers. Raises Refused with one line for each problem."""
    try:
        return identity_providers.load_identity_providers(config.identity_providers, Path(config.state_dir))
    except identity_providers.InvalidIdentityProviders as error:
        raise Refused(str(error)) from error


def file_problems(config: MasterConfig) -> Iterator[str]:
    """Yield what keeps the master from starting in the files that the settings name, one sentence for each problem."""
    loaders: tuple[Callable[[MasterConfig], object], ...] = (_read_providers, load_audit_policy, load_policy)
    for load in loaders:
        try:
            load(config)
        except Refused as error:
            yield from str(error).splitlines()


def password_file_problems(config: MasterConfig) -> Iterator[str]:
    """Yield the lines of password files with which nobody can log in. The master starts nevertheless."""
    try:
        providers = _read_providers(config)
    except Refused:
        return
    for number, provider in enumerate(providers):
        if isinstance(provider.authenticator, HTPasswdProvider):
            for problem in provider.authenticator.file_problems():
                yield f"identityProviders[{number}].provider.file: {problem}"


def _read_providers(config: MasterConfig) -> tuple[IdentityProvider, ...]:
    """Return the identity providers without the warnings of a start. Raises Refused."""
    try:
        return identity_providers.read_identity_providers(config.identity_providers, Path(config.state_dir))
    except identity_providers.InvalidIdentityProviders as error:
        raise Refused(str(error)) from error
