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
from master.auth.attributes import User
from master.auth.pki import private_pem
from master.resources import BUILTIN
from master.resources.configuration import SERVICE_ACCOUNTS, ServiceAccount
from reconcile import atomic_file
from reconcile.errors import NotReady, Refused

DEFAULT_SERVICE_ACCOUNT = "default"
ROOT_CA_CONFIGMAP = "kube-root-ca.crt"
ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Who says what is in a token, and for whom it is if nobody else is named."""

MIN_TOKEN_SECONDS, DEFAULT_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 600, 3600, 1 << 32
"""Seconds that a token is good for."""

SERVICE_ACCOUNT_USER_PREFIX = "system:serviceaccount:"
BINDABLE_KINDS = ("Pod", "Secret", "Node")
KUBERNETES_CLAIM = "kubernetes.io"
"""The claim that says for which objects a token was given."""

Claims = Mapping[str, Any]


# --- what a token says ------------------------------------------------------------------------------------------------


def token_claims(
    account: ServiceAccount, asked: TokenRequest, bound: Object | None, now: datetime.datetime
) -> dict[str, Any]:
    """The claims of a token (RFC 7519); `bound` is the object that the request names, if there is one."""
    spec, meta = asked.spec, account.metadata
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
            why = (
                f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise errors.conflict(bindable, reference.name, why)
        private[reference.kind.lower()] = {"name": bound.metadata.name, "uid": bound.metadata.uid}
    begin = int(now.timestamp())
    return {**_common_claims(account, private, begin), "aud": list(spec.audiences) or [ISSUER], "exp": begin + seconds}


def secret_token_claims(account: ServiceAccount, secret: Secret, now: datetime.datetime) -> dict[str, Any]:
    """The claims of a token that is good as long as the Secret is there which it stands in."""
    meta, held = account.metadata, secret.metadata
    private = {
        "namespace": meta.namespace,
        "serviceaccount": {"name": meta.name, "uid": meta.uid},
        "secret": {"name": held.name, "uid": held.uid},
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


def bound_objects(found: Claims) -> list[tuple[str, str, str, str]]:
    """(kind, namespace, name, uid) of every object without which a token is worth nothing."""
    private = found[KUBERNETES_CLAIM]
    rows = [("ServiceAccount", "serviceaccount"), *((kind, kind.lower()) for kind in BINDABLE_KINDS)]
    return [
        (kind, "" if kind == "Node" else private["namespace"], private[key]["name"], private[key]["uid"])
        for kind, key in rows
        if key in private
    ]


def user_from_claims(found: Claims) -> User:
    """Who presents a token."""
    private = found[KUBERNETES_CLAIM]
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{private['namespace']}", "system:authenticated")
    pod = private.get("pod", {})
    extra = tuple((f"authentication.kubernetes.io/pod-{key}", (pod[key],)) for key in ("name", "uid") if key in pod)
    return User(found["sub"], frozenset(groups), private["serviceaccount"]["uid"], extra)


def accepted_audiences(found: Claims, wanted: Collection[str]) -> tuple[str, ...]:
    """For which of the wanted audiences a token is meant; without a wish, for this server."""
    return tuple(one for one in (wanted or (ISSUER,)) if one in found["aud"])


ALGORITHM = "ES256"

OPENID_CONFIGURATION_PATH, JWKS_PATH = "/.well-known/openid-configuration", "/openid/v1/jwks"
"""Where others learn by which keys tokens are known."""


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs tokens and reads them again."""

    key: ec.EllipticCurvePrivateKey

    @property
    def key_id(self) -> str:
        """By which a reader finds the key."""
        public = self.key.public_key()
        encoded = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(encoded).hexdigest()[:32]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """The token (RFC 7515)."""
        return jwt.encode(dict(claims), self.key, ALGORITHM, headers={"kid": self.key_id})

    def read(self, token: str, now: datetime.datetime) -> Mapping[str, Any]:
        """The claims of a token of ours that is good now. Raises Refused for all others."""
        try:
            options: Any = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            found: dict[str, Any] = jwt.decode(
                token, self.key.public_key(), [ALGORITHM], issuer=ISSUER, options=options
            )
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise Refused(f"the token is none of this server's: {error}") from error
        if not _is_well_formed(found) or found.get("exp", math.inf) <= now.timestamp():
            raise Refused("the token has expired, or says less than a token of a service account")
        return found

    def keys(self) -> dict[str, Any]:
        """GET /openid/v1/jwks: the public key, for others who are to trust the tokens (RFC 7517)."""
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**key, "use": "sig", "kid": self.key_id, "alg": ALGORITHM}]}

    def configuration(self, url: str) -> dict[str, Any]:
        """GET /.well-known/openid-configuration: where the keys are, of the server that is reached at `url`."""
        return {
            "issuer": ISSUER,
            "jwks_uri": f"{url}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }


def _is_well_formed(found: Mapping[str, Any]) -> bool:
    private = found.get(KUBERNETES_CLAIM)
    if not isinstance(private, dict) or not isinstance(private.get("namespace"), str):
        return False
    named = [private[key] for key in ("serviceaccount", *map(str.lower, BINDABLE_KINDS)) if key in private]
    good = all(isinstance(row, dict) and {"name", "uid"} <= row.keys() for row in named)
    ends = isinstance(found.get("exp"), int) or ("secret" in private and "exp" not in found)
    return good and "serviceaccount" in private and ends and "sub" in found


def load_token_signer(directory: Path) -> TokenSigner:
    """The issuer of this cluster; its key is made if there is none. Raises NotReady and Refused."""
    path = directory / "sa.key"
    try:
        if not path.exists():
            atomic_file.write(path, private_pem(ec.generate_private_key(ec.SECP256R1())))
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise NotReady(f"key for tokens {path}: {error}") from error
    except ValueError as error:
        raise Refused(f"key for tokens {path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Refused(f"key for tokens {path} is not an EC key; remove it, and tokens that were given are void")
    return TokenSigner(key)
