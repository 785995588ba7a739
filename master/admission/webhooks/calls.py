"""The external call of a webhook, and its result. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from master.admission.external_calls import ExternalCall
from master.resources.client_config import HTTPS_PORT, WebhookClientConfig


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """A port of a service of the cluster. Its certificate is verified for `server_name`."""

    namespace: str
    name: str
    port: int

    @property
    def server_name(self) -> str:
        """Return the name in the certificate and in the Host header."""
        return f"{self.name}.{self.namespace}.svc"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where a webhook is: a service with a path, or a URL. `ca_bundle` is in PEM; empty for the host's certificates."""

    service: ServiceTarget | None
    url: str
    """The URL as error messages show it, without a query. For a service it is that of its name."""
    ca_bundle: bytes


def webhook_target(config: WebhookClientConfig) -> WebhookTarget:
    """Return where a webhook is."""
    if config.service is None:
        return WebhookTarget(None, config.url or "", config.ca_bundle)
    service = config.service
    target = ServiceTarget(service.namespace, service.name, service.port or HTTPS_PORT)
    path = f"/{(service.path or '').lstrip('/')}"
    return WebhookTarget(target, f"https://{target.server_name}:{target.port}{path}", config.ca_bundle)


@dataclass(frozen=True, slots=True)
class WebhookCall(ExternalCall):
    """A question to an admission webhook.

    `version` is that of the AdmissionReview. `request` is the JSON of its request without the uid, which is drawn for
    each call. `seconds` is how long the webhook may take.
    """

    target: WebhookTarget
    version: str
    request: bytes
    seconds: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """The Status with which a webhook rejects a request. Empty parts were not said."""

    code: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The response of a webhook. `rejection` is None if it accepts the request. `patch` is a list of operations."""

    rejection: Rejection | None = None
    patch: tuple[object, ...] = ()
    has_patch: bool = False
    warnings: tuple[str, ...] = ()
    audit_annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Why a webhook gave no usable response. The failure policy of the webhook decides what follows."""

    error: str


WebhookResult = Verdict | CallFailed
