"""Tokens of service accounts: claims (RFC 7519), signing key, and OpenID discovery documents."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from api.core.auth import TokenRequest
from api.core.config import Secret
from api.meta.schema import FieldError, quoted
from api.meta.types import Object
from master import errors
from master.auth.attributes import AUTHENTICATED, SERVICE_ACCOUNT_USER_PREFIX, User, service_account_groups
from master.auth.pki import private_pem
from master.resources import BUILTIN
from master.resources.configuration import SERVICE_ACCOUNTS, ServiceAccount
from reconcile import atomic_file
from reconcile.errors import NotReady, Refused

DEFAULT_SERVICE_ACCOUNT = "default"
ROOT_CA_CONFIGMAP = "kube-root-ca.crt"
ISSUER = "https://kubernetes.default.svc.cluster.local"
"""The issuer of tokens, and the audience of tokens that are requested without one."""

MIN_TOKEN_SECONDS, DEFAULT_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 600, 3600, 1 << 32
"""Lifetime of a token in seconds."""

BINDABLE_KINDS = ("Pod", "Secret", "Node")
KUBERNETES_CLAIM = "kubernetes.io"
"""The claim with the service account of a token and the objects that it is bound to."""

AUTHENTICATION_PREFIX = "authentication.kubernetes.io/"
"""Prefix of the extra values of a user that come from its credential."""

Claims = Mapping[str, Any]


# --- claims -----------------------------------------------------------------------------------------------------------


def token_claims(
    account: ServiceAccount, request: TokenRequest, bound: Object | None, now: datetime.datetime, token_id: str
) -> dict[str, Any]:
    """Return the claims of a token (RFC 7519). `bound` is the object to bind it to, None if it does not exist.

    `token_id` tells the token apart from all others. Raises StatusError.
    """
    spec, meta = request.spec, account.metadata
    seconds = DEFAULT_TOKEN_SECONDS if spec.expiration_seconds is None else spec.expiration_seconds
    if not MIN_TOKEN_SECONDS <= seconds <= MAX_TOKEN_SECONDS:
        problem = FieldError(
            "spec.expirationSeconds", quoted(seconds), f"may not be less than {MIN_TOKEN_SECONDS} (10 minutes)"
        )
        raise errors.invalid(SERVICE_ACCOUNTS, meta.name, [problem])
    private: dict[str, Any] = {"namespace": meta.namespace, "serviceaccount": {"name": meta.name, "uid": meta.uid}}
    reference = spec.bound_object_ref
    if reference is not None:
        if reference.kind not in BINDABLE_KINDS:
            problem = FieldError(
                "spec.boundObjectRef.kind", quoted(reference.kind), f"{', '.join(BINDABLE_KINDS)} are accepted"
            )
            raise errors.invalid(SERVICE_ACCOUNTS, meta.name, [problem])
        bindable = next(resource for resource in BUILTIN if resource.kind == reference.kind)
        if bound is None:
            raise errors.not_found(bindable, reference.name)
        if reference.uid not in ("", bound.metadata.uid):
            mismatch = (
                f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise errors.conflict(bindable, reference.name, mismatch)
        private[reference.kind.lower()] = {"name": bound.metadata.name, "uid": bound.metadata.uid}
    begin = int(now.timestamp())
    audiences = list(spec.audiences) or [ISSUER]
    return {**_common_claims(account, private, begin), "aud": audiences, "exp": begin + seconds, "jti": token_id}


def secret_token_claims(account: ServiceAccount, secret: Secret, now: datetime.datetime) -> dict[str, Any]:
    """Return the claims of a token that is stored in a Secret. It is valid as long as the Secret exists."""
    meta, secret_meta = account.metadata, secret.metadata
    private = {
        "namespace": meta.namespace,
        "serviceaccount": {"name": meta.name, "uid": meta.uid},
        "secret": {"name": secret_meta.name, "uid": secret_meta.uid},
    }
    return {**_common_claims(account, private, int(now.timestamp())), "aud": [ISSUER]}


def _common_claims(account: ServiceAccount, private: Claims, begin: int) -> dict[str, Any]:
    meta = account.metadata
    return {
        "iss": ISSUER,
        "sub": f"{SERVICE_ACCOUNT_USER_PREFIX}{meta.namespace}:{meta.name}",
        "iat": begin,
        "nbf": begin,
        KUBERNETES_CLAIM: private,
    }


def bound_objects(claims: Claims) -> list[tuple[str, str, str, str]]:
    """Return (kind, namespace, name, uid) of each object that must exist for the token to be valid."""
    private = claims[KUBERNETES_CLAIM]
    claim_keys = [("ServiceAccount", "serviceaccount"), *((kind, kind.lower()) for kind in BINDABLE_KINDS)]
    return [
        (kind, "" if kind == "Node" else private["namespace"], private[key]["name"], private[key]["uid"])
        for kind, key in claim_keys
        if key in private
    ]


def user_from_claims(claims: Claims) -> User:
    """Return the user of a token. Its extra names the token, so that audit events tell which one was used."""
    private = claims[KUBERNETES_CLAIM]
    groups = (*service_account_groups(private["namespace"]), AUTHENTICATED)
    pod = private.get("pod", {})
    extra = tuple((f"{AUTHENTICATION_PREFIX}pod-{key}", (pod[key],)) for key in ("name", "uid") if key in pod)
    if isinstance(token_id := claims.get("jti"), str) and token_id:
        extra += ((f"{AUTHENTICATION_PREFIX}credential-id", (f"JTI={token_id}",)),)
    return User(claims["sub"], frozenset(groups), private["serviceaccount"]["uid"], extra)


def accepted_audiences(claims: Claims, requested: Collection[str]) -> tuple[str, ...]:
    """Return those of the requested audiences that the token is for. Without any, this server's is requested."""
    return tuple(audience for audience in (requested or (ISSUER,)) if audience in claims["aud"])


ALGORITHM = "ES256"

OPENID_CONFIGURATION_PATH, JWKS_PATH = "/.well-known/openid-configuration", "/openid/v1/jwks"
"""Paths of OpenID discovery, from which relying parties get the keys that verify tokens."""


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """The signer and verifier of service account tokens."""

    key: ec.EllipticCurvePrivateKey

    @property
    def key_id(self) -> str:
        """Return the key ID in the header of tokens and in the JWKS."""
        public = self.key.public_key()
        encoded = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(encoded).hexdigest()[:32]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return the signed token (RFC 7515)."""
        return jwt.encode(dict(claims), self.key, ALGORITHM, headers={"kid": self.key_id})

    def verify(self, token: str, now: datetime.datetime) -> Mapping[str, Any]:
        """Return the claims of a token that this server signed and that has not expired. Raises Refused."""
        try:
            options: Any = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            claims: dict[str, Any] = jwt.decode(
                token, self.key.public_key(), [ALGORITHM], issuer=ISSUER, options=options
            )
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise Refused(f"the token is not signed by this server: {error}") from error
        if not _is_well_formed(claims) or claims.get("exp", math.inf) <= now.timestamp():
            raise Refused("the token has expired, or lacks claims of a service account token")
        return claims

    def jwks(self) -> dict[str, Any]:
        """Return the response to GET /openid/v1/jwks: the public key that verifies tokens (RFC 7517)."""
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**key, "use": "sig", "kid": self.key_id, "alg": ALGORITHM}]}

    def openid_configuration(self, url: str) -> dict[str, Any]:
        """Return the response to GET /.well-known/openid-configuration. `url` is that of this server."""
        return {
            "issuer": ISSUER,
            "jwks_uri": f"{url}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }


def _is_well_formed(claims: Mapping[str, Any]) -> bool:
    private = claims.get(KUBERNETES_CLAIM)
    if not isinstance(private, dict) or not isinstance(private.get("namespace"), str):
        return False
    references = [private[key] for key in ("serviceaccount", *map(str.lower, BINDABLE_KINDS)) if key in private]
    are_references = all(
        isinstance(reference, dict) and {"name", "uid"} <= reference.keys() for reference in references
    )
    has_expiration = isinstance(claims.get("exp"), int) or ("secret" in private and "exp" not in claims)
    return are_references and "serviceaccount" in private and has_expiration and "sub" in claims


def load_token_signer(directory: Path) -> TokenSigner:
    """Return the token signer of this cluster. Creates its key if there is none. Raises NotReady and Refused."""
    path = directory / "sa.key"
    try:
        if not path.exists():
            atomic_file.write(path, private_pem(ec.generate_private_key(ec.SECP256R1())))
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise NotReady(f"signing key of tokens {path}: {error}") from error
    except ValueError as error:
        raise Refused(f"signing key of tokens {path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Refused(
            f"signing key of tokens {path} is not an EC key; if it is removed, the master creates one, and all tokens "
            "become invalid"
        )
    return TokenSigner(key)
