"""The subresource serviceaccounts/token: creates tokens of service accounts."""

from __future__ import annotations

import uuid

import msgspec

from api.core.auth import TokenRequest, TokenRequestStatus
from api.meta.schema import without_nulls
from master import errors
from master.admission.node_restriction import check_token_request
from master.auth import service_account_tokens
from master.auth.service_account_tokens import TokenSigner
from master.registry import decoding
from master.registry.guaranteed_update import WriteDecision
from master.registry.registry import Registry
from master.registry.request import Request, Response
from master.resources.configuration import ServiceAccount
from master.resources.metadata import Clock, format_time
from master.resources.scheme import BY_KIND
from master.storage.interface import Key, Storage


class TokenRequests:
    """Creates signed tokens. They are not stored. Raises `errors.StatusError`."""

    def __init__(self, store: Storage, signer: TokenSigner, clock: Clock, registry: Registry) -> None:
        self._store = store
        self._signer = signer
        self._clock = clock
        self._registry = registry

    async def create(self, request: Request) -> Response:
        """POST serviceaccounts/NAME/token."""

        def decide() -> WriteDecision[Response]:
            response = self._decide(request)
            return WriteDecision(lambda _: response, is_dry_run=True)

        return await self._registry.decide_action(request, decide)

    def _decide(self, request: Request) -> Response:
        token_request = decode_token_request(request)
        reference = token_request.spec.bound_object_ref
        bound = None
        if reference is not None:
            namespace = "" if reference.kind == "Node" else request.info.namespace
            if (resource := BY_KIND.get(reference.kind)) is not None:
                record = self._store.get_uncommitted(Key(resource.group_resource, namespace, reference.name))
                bound = None if record is None else record.object
        check_token_request(request.user, request.info, token_request, bound)
        record = self._store.get_uncommitted(request.key)
        if record is None:
            raise errors.not_found(request.info.resource, request.info.name)
        account: ServiceAccount = record.object
        self._registry.admit_action(request, account)
        now = self._clock()
        claims = service_account_tokens.token_claims(account, token_request, bound, now, str(uuid.uuid4()))
        expiration = now.fromtimestamp(claims["exp"], now.tzinfo)
        response = TokenRequest(
            api_version=TokenRequest.API_VERSION,
            kind=TokenRequest.KIND,
            metadata=msgspec.structs.replace(
                account.metadata,
                labels={},
                annotations={},
                managed_fields=None,
                creation_timestamp=format_time(now),
            ),
            spec=msgspec.structs.replace(
                token_request.spec, audiences=tuple(claims["aud"]), expiration_seconds=claims["exp"] - claims["iat"]
            ),
            status=TokenRequestStatus(token=self._signer.sign(claims), expiration_timestamp=format_time(expiration)),
        )
        return Response(201, msgspec.json.encode(response))


def decode_token_request(request: Request) -> TokenRequest:
    """Decode the TokenRequest in a body. Raises BadRequest."""
    try:
        token_request = msgspec.convert(without_nulls(request.body), TokenRequest)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a TokenRequest: {error}") from error
    decoding.check_namespace(token_request.metadata.namespace, request.info.namespace)
    return token_request
