"""Certificates for nodes: an administrator asks for one, and it is signed at once. Nothing is stored."""

from __future__ import annotations

import base64
import binascii
import datetime
from typing import Any

import msgspec

from api.names import dns_subdomain
from api.objects import StatusCause, StatusDetails
from api.schema import without_nulls
from master.access.authorize import NODE_PREFIX, NODES
from master.access.pki import Authority, Request, read_request, sign_request
from master.kinds.kind import show_time
from master.wire import answers
from reconcile.errors import Refused

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """What is asked for; `request` is a PEM certificate request in base64."""

    request: str = ""
    signer_name: str = ""
    usages: tuple[str, ...] = ()


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The name of the request is the asker's affair."""

    name: str = ""
    generate_name: str = ""


class SigningRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A CertificateSigningRequest, as far as it matters here."""

    spec: Spec = Spec()
    metadata: Metadata = Metadata()


def sign(ca: Authority, document: Any, now: datetime.datetime) -> dict[str, Any]:
    """The CertificateSigningRequest with its certificate. Raises Failure."""
    try:
        asked = msgspec.convert(without_nulls(document), SigningRequest)
    except msgspec.ValidationError as error:
        raise answers.bad_request(f"the body is not a CertificateSigningRequest: {error}") from error
    request = _checked(asked.spec)
    certificate = sign_request(ca, request, now)
    moment = show_time(now)
    approved = {
        "type": "Approved",
        "status": "True",
        "reason": "AskedByAdministrator",
        "message": "Signed at once, as an administrator asked for it.",
        "lastUpdateTime": moment,
        "lastTransitionTime": moment,
    }
    return {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": asked.metadata.name or asked.metadata.generate_name, "creationTimestamp": moment},
        "spec": msgspec.to_builtins(asked.spec),
        "status": {"conditions": [approved], "certificate": base64.b64encode(certificate).decode("ascii")},
    }


def _checked(spec: Spec) -> Request:
    problems: list[tuple[str, str]] = []
    if spec.signer_name != SIGNER:
        problems.append(("spec.signerName", f"is {spec.signer_name!r}; {SIGNER} is accepted"))
    request = None
    try:
        request = read_request(base64.b64decode(spec.request, validate=True))
    except (binascii.Error, Refused) as error:
        problems.append(("spec.request", str(error)))
    if request is not None:
        node = request.user.removeprefix(NODE_PREFIX)
        if node == request.user or dns_subdomain(node):
            wanted = f"{NODE_PREFIX}NAME with the name of a node is accepted"
            problems.append(("spec.request", f"its common name is {request.user!r}; {wanted}"))
        if request.groups != (NODES,):
            problems.append(("spec.request", f"its organizations are {list(request.groups)}; [{NODES!r}] is accepted"))
    if request is None or problems:
        raise _invalid(problems)
    return request


def _invalid(problems: list[tuple[str, str]]) -> answers.Failure:
    causes = tuple(StatusCause(reason="FieldValueInvalid", message=text, field=path) for path, text in problems)
    details = StatusDetails(group="certificates.k8s.io", kind="CertificateSigningRequest", causes=causes)
    listed = ", ".join(f"{path}: {text}" for path, text in problems)
    return answers.failure(422, "Invalid", f"CertificateSigningRequest is invalid: {listed}", details)
