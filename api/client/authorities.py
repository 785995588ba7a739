"""The authorities of a cluster in the ConfigMap cluster-info. Pure."""

from __future__ import annotations

import base64
from typing import Any

from api.codec import yaml
from api.core.cluster_info import KUBECONFIG_KEY
from api.core.config import ConfigMap

MAX_NODES = 100
"""Limit of the keys and values of the kubeconfig in it. A master writes about 15."""


def authorities_of(info: ConfigMap) -> bytes:
    """Return the certificates in the ConfigMap as PEM. It may be of anybody. Raises ValueError."""
    documents = yaml.parse(info.data.get(KUBECONFIG_KEY, ""), MAX_NODES)
    try:
        cluster: Any = documents[0].value["clusters"][0]["cluster"]  # type: ignore[index]
        return base64.b64decode(cluster["certificate-authority-data"], validate=True)
    except (LookupError, TypeError, ValueError):
        raise ValueError("the kubeconfig has no certificate-authority-data") from None
