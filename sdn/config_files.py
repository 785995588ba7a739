"""Judges the files that the settings of the sdn daemon name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from api.client.kubeconfig import kubeconfig_problems
from reconcile.config_document import unreadable_file
from sdn.config import Settings


def file_problems(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the files that exist before the daemon starts."""
    yield from kubeconfig_problems("kubeconfig", settings.kubeconfig)
    if settings.cluster_domain:
        yield from unreadable_file("resolvConf", Path(settings.resolv_conf))
