"""Driver: the key with which tokens of service accounts are signed, in `stateDir/pki/sa.key`, and PyJWT."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from master.access.accounts import BINDABLE, ISSUER, PRIVATE
from master.access.pki import private_pem
from reconcile import atomic_file
from reconcile.errors import NotReady, Refused

ALGORITHM = "ES256"

CONFIGURATION_PATH, KEYS_PATH = "/.well-known/openid-configuration", "/openid/v1/jwks"
"""Where others learn by which keys tokens are known."""


@dataclass(frozen=True, slots=True)
class Issuer:
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
        if not _has_form(found) or found.get("exp", math.inf) <= now.timestamp():
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
            "jwks_uri": f"{url}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }


def _has_form(found: Mapping[str, Any]) -> bool:
    private = found.get(PRIVATE)
    if not isinstance(private, dict) or not isinstance(private.get("namespace"), str):
        return False
    named = [private[key] for key in ("serviceaccount", *map(str.lower, BINDABLE)) if key in private]
    good = all(isinstance(row, dict) and {"name", "uid"} <= row.keys() for row in named)
    ends = isinstance(found.get("exp"), int) or ("secret" in private and "exp" not in found)
    return good and "serviceaccount" in private and ends and "sub" in found


def issuer(directory: Path) -> Issuer:
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
    return Issuer(key)
