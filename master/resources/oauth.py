"""The kinds of OpenShift's oauth.openshift.io: clients, tokens, and what users have granted to clients. Pure.

The name of a token object is a hash of the token, so who reads the store, a backup or a list cannot use the token.
Source: the API and the validation of OpenShift.
"""

from __future__ import annotations

import datetime
import re
import urllib.parse
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from api.core.oauth import TOKEN_PREFIX
from api.meta import names
from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.types import Object, Value
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.metadata import format_time, parse_time, with_metadata
from master.resources.printing import NAME, age, duration
from master.resources.resource import READ_VERBS, Column, Resource, Version
from master.resources.users import user_name_error

OAUTH_GROUP = "oauth.openshift.io"
BOOTSTRAP_USER = "kube:admin"
"""The first administrator of OpenShift. It has tokens, but no User object."""

SERVICE_ACCOUNT_CLIENT_PREFIX = "system:serviceaccount:"

GRANT_AUTO, GRANT_PROMPT, GRANT_DENY = "auto", "prompt", "deny"
GRANT_METHODS = (GRANT_AUTO, GRANT_PROMPT, GRANT_DENY)
"""Ways to grant scopes to a client: without a question, after the user approves, or not at all."""

MIN_TOKEN_NAME, MIN_INACTIVITY_SECONDS = 32, 300
MAX_SCOPES, MAX_SCOPE_LENGTH = 20, 512
PKCE_PLAIN, PKCE_S256 = "plain", "S256"
_CODE_CHALLENGE = re.compile(r"[a-zA-Z0-9._~-]{43,128}")
"""The form of a challenge and of a verifier (RFC 7636, 4.1 and 4.2)."""


class ClusterRoleScopeRestriction(Value, frozen=True):
    """Scopes of ClusterRoles that a client may request; `*` stands for all names."""

    role_names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    allow_escalation: bool = False


class ScopeRestriction(Value, frozen=True):
    """Scopes that a client may request: either literal ones or those of ClusterRoles."""

    literals: tuple[str, ...] = ()
    cluster_role: ClusterRoleScopeRestriction | None = None


class OAuthClient(Object, frozen=True):
    """A program that gets tokens of users. A client without a secret is public, such as a command line.

    An absent `accessTokenMaxAgeSeconds` is the default lifetime, 0 means that tokens do not expire.
    """

    API_VERSION = f"{OAUTH_GROUP}/v1"
    KIND = "OAuthClient"
    PLURAL = "oauthclients"
    NAMESPACED = False

    secret: str = ""
    additional_secrets: tuple[str, ...] = ()
    respond_with_challenges: bool = False
    redirect_uris: tuple[str, ...] = msgspec.field(default=(), name="redirectURIs")
    grant_method: str = ""
    scope_restrictions: tuple[ScopeRestriction, ...] = ()
    access_token_max_age_seconds: Int32 | None = None
    access_token_inactivity_timeout_seconds: Int32 | None = None


class OAuthAccessToken(Object, frozen=True):
    """A token with which a user sends requests. `expiresIn` counts from the creation; 0 means never.

    `inactivityTimeoutSeconds`, from the creation as well, grows while the token is used; 0 means no limit.
    """

    API_VERSION = f"{OAUTH_GROUP}/v1"
    KIND = "OAuthAccessToken"
    PLURAL = "oauthaccesstokens"
    NAMESPACED = False

    client_name: str = ""
    expires_in: int = 0
    scopes: tuple[str, ...] = ()
    redirect_uri: str = msgspec.field(default="", name="redirectURI")
    user_name: str = ""
    user_uid: str = msgspec.field(default="", name="userUID")
    authorize_token: str = ""
    refresh_token: str = ""
    inactivity_timeout_seconds: Int32 = 0


class UserOAuthAccessToken(OAuthAccessToken, frozen=True):
    """An access token as its user sees it. Users see only their own."""

    KIND = "UserOAuthAccessToken"
    PLURAL = "useroauthaccesstokens"


class OAuthAuthorizeToken(Object, frozen=True):
    """A code that a client exchanges for an access token, once. `codeChallenge` is that of RFC 7636."""

    API_VERSION = f"{OAUTH_GROUP}/v1"
    KIND = "OAuthAuthorizeToken"
    PLURAL = "oauthauthorizetokens"
    NAMESPACED = False

    client_name: str = ""
    expires_in: int = 0
    scopes: tuple[str, ...] = ()
    redirect_uri: str = msgspec.field(default="", name="redirectURI")
    state: str = ""
    user_name: str = ""
    user_uid: str = msgspec.field(default="", name="userUID")
    code_challenge: str = ""
    code_challenge_method: str = ""


class OAuthClientAuthorization(Object, frozen=True):
    """The scopes that a user has granted to a client. Its name is `userName:clientName`."""

    API_VERSION = f"{OAUTH_GROUP}/v1"
    KIND = "OAuthClientAuthorization"
    PLURAL = "oauthclientauthorizations"
    NAMESPACED = False

    client_name: str = ""
    user_name: str = ""
    user_uid: str = msgspec.field(default="", name="userUID")
    scopes: tuple[str, ...] = ()


def authorization_name(user_name: str, client_name: str) -> str:
    """Return the name of the OAuthClientAuthorization of a user and a client."""
    return f"{user_name}:{client_name}"


def is_code_challenge(text: str) -> bool:
    """Return whether a text has the form of a code challenge, which is that of a code verifier."""
    return _CODE_CHALLENGE.fullmatch(text) is not None


SCRIPT_SCHEMES = frozenset(("about", "blob", "data", "file", "javascript", "vbscript"))
"""Schemes that make a browser run or show something of its own."""


def redirect_uri_error(uri: str) -> str:
    """Check a redirect URI of a client. Return what is wrong with it, an empty string if it is valid."""
    try:
        parts = urllib.parse.urlsplit(uri)
        parts.port  # noqa: B018  # An invalid port raises.
    except ValueError as error:
        return str(error)
    if "#" in uri:
        return "may not contain a fragment"
    if not parts.scheme or parts.scheme.lower() in SCRIPT_SCHEMES:
        return "an absolute URI of a client is accepted"
    if parts.username is not None:
        return "may not contain the name of a user, which people read as the host"
    if any(segment in (".", "..") for segment in urllib.parse.unquote(parts.path).split("/")):
        return "may not contain dot segments"
    return "" if uri.isascii() and uri.isprintable() and " " not in uri and "\\" not in uri else "is not a URI"


# --- scopes -----------------------------------------------------------------------------------------------------------

USER_INFO, USER_CHECK_ACCESS, USER_FULL = "user:info", "user:check-access", "user:full"
USER_LIST_SCOPED_PROJECTS, USER_LIST_PROJECTS = "user:list-scoped-projects", "user:list-projects"
USER_SCOPES: Mapping[str, str] = {
    USER_INFO: "Read-only access to your user information (including username, identities, and group membership)",
    USER_CHECK_ACCESS: 'Read-only access to view your privileges (for example, "can I create builds?")',
    USER_LIST_SCOPED_PROJECTS: "Read-only access to list your projects viewable with this token",
    USER_LIST_PROJECTS: "Read-only access to list your projects and view their metadata (display name, description)",
    USER_FULL: "Full read/write access with all of your permissions",
}
"""The scopes that are no role, with the descriptions that users see."""

ROLE_SCOPE_PREFIX, ALL_NAMESPACES = "role:", "*"
_SCOPE_CHARACTERS = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class RoleScope(Value, frozen=True):
    """The scope `role:NAME:NAMESPACE`: the rules of a ClusterRole in one namespace, or with `*` everywhere.

    Unless it ends with `:!`, rules with which a client could get more rights are left out.
    """

    role: str
    namespace: str
    is_escalating: bool = False


def parse_role_scope(scope: str) -> RoleScope | None:
    """Return the parts of a role scope; None if the text is none. The name of the role may contain colons."""
    if not scope.startswith(ROLE_SCOPE_PREFIX):
        return None
    text = scope.removeprefix(ROLE_SCOPE_PREFIX)
    is_escalating = text.endswith(":!")
    role, colon, namespace = text.removesuffix(":!").rpartition(":")
    return RoleScope(role, namespace, is_escalating) if colon and role and namespace else None


def scope_error(scope: str) -> str:
    """Check a scope. Return what is wrong with it, an empty string if it is valid."""
    if len(scope) > MAX_SCOPE_LENGTH:
        return f"must be no more than {MAX_SCOPE_LENGTH} characters"
    if not _SCOPE_CHARACTERS.fullmatch(scope):
        return "contains a character that is not accepted in scopes"
    return "" if scope in USER_SCOPES or parse_role_scope(scope) is not None else "no scope handler found"


def is_scope_allowed(restrictions: tuple[ScopeRestriction, ...], scope: str) -> bool:
    """Return whether a client with these restrictions may request a scope. Without restrictions it may request all."""
    return not restrictions or any(_permits(restriction, scope) for restriction in restrictions)


def _permits(restriction: ScopeRestriction, scope: str) -> bool:
    if restriction.cluster_role is None:
        return scope in restriction.literals
    role_scope, accepted = parse_role_scope(scope), restriction.cluster_role
    if role_scope is None or (role_scope.is_escalating and not accepted.allow_escalation):
        return False
    is_role_accepted = "*" in accepted.role_names or role_scope.role in accepted.role_names
    return is_role_accepted and ("*" in accepted.namespaces or role_scope.namespace in accepted.namespaces)


# --- tokens -----------------------------------------------------------------------------------------------------------


def expiration(token: OAuthAccessToken | OAuthAuthorizeToken) -> datetime.datetime | None:
    """Return when a token expires; None if it does not. A token whose creation time is invalid has expired."""
    if not token.expires_in:
        return None
    created = parse_time(token.metadata.creation_timestamp)
    if created is None:
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)
    try:
        return created + datetime.timedelta(seconds=token.expires_in)
    except OverflowError:
        return datetime.datetime.max.replace(tzinfo=datetime.UTC)


def is_expired(token: OAuthAccessToken | OAuthAuthorizeToken, now: datetime.datetime) -> bool:
    """Return whether the lifetime of a token is over, or it was not used for too long."""
    end = expiration(token)
    if end is not None and end <= now:
        return True
    if not isinstance(token, OAuthAccessToken) or not token.inactivity_timeout_seconds:
        return False
    created = parse_time(token.metadata.creation_timestamp)
    return created is None or created + datetime.timedelta(seconds=token.inactivity_timeout_seconds) < now


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_client_name(path: str, name: str) -> Iterator[FieldError]:
    """Check the client that a token names: an OAuthClient or a service account."""
    if name.startswith(SERVICE_ACCOUNT_CLIENT_PREFIX):
        namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_CLIENT_PREFIX).partition(":")
        error = names.dns_label_error(namespace) or names.dns_subdomain_error(account)
    else:
        error = names.dns_subdomain_error(name)
    if error:
        yield FieldError(path, quoted(name), error)


def _validate_client(client: OAuthClient) -> Iterator[FieldError]:
    for number, uri in enumerate(client.redirect_uris):
        if error := redirect_uri_error(uri):
            yield FieldError(f"redirectURIs[{number}]", quoted(uri), error)
    if not client.grant_method:
        yield FieldError("grantMethod", '""', "auto, prompt and deny are accepted", MISSING)
    elif client.grant_method not in GRANT_METHODS:
        detail = "auto, prompt and deny are accepted"
        yield FieldError("grantMethod", quoted(client.grant_method), detail, NOT_SUPPORTED)
    for number, restriction in enumerate(client.scope_restrictions):
        if bool(restriction.literals) == (restriction.cluster_role is not None):
            path = f"scopeRestrictions[{number}]"
            yield FieldError(path, "given", "exactly one of literals and clusterRole is accepted")
    if (client.access_token_max_age_seconds or 0) < 0:
        age_seconds = quoted(client.access_token_max_age_seconds)
        yield FieldError("accessTokenMaxAgeSeconds", age_seconds, "must be a positive integer or 0")
    timeout = client.access_token_inactivity_timeout_seconds
    if timeout is not None and timeout != 0 and timeout < MIN_INACTIVITY_SECONDS:
        detail = f"the minimum valid timeout value is {MIN_INACTIVITY_SECONDS} seconds"
        yield FieldError("accessTokenInactivityTimeoutSeconds", quoted(timeout), detail)


def _check_user(name: str, uid: str) -> Iterator[FieldError]:
    if not name:
        yield FieldError("userName", '""', "a name is required", MISSING)
    elif name != BOOTSTRAP_USER and (error := user_name_error(name)):
        yield FieldError("userName", quoted(name), error)
    if not uid:
        yield FieldError("userUID", '""', "the uid of the user is required", MISSING)


def _check_scopes(scopes: tuple[str, ...]) -> Iterator[FieldError]:
    if not scopes:
        yield FieldError("scopes", "[]", "may not be empty", MISSING)
    if len(scopes) > MAX_SCOPES:
        yield FieldError("scopes", f"{len(scopes)} items", f"at most {MAX_SCOPES} are accepted")
        return
    for number, scope in enumerate(scopes):
        if error := scope_error(scope):
            yield FieldError(f"scopes[{number}]", quoted(scope), error)


def _token_name_error(name: str) -> str:
    if not name.startswith(TOKEN_PREFIX):
        return "only the new format of tokens (prefixed with sha256~) is allowed"
    if len(name) < MIN_TOKEN_NAME:
        return f"must be at least {MIN_TOKEN_NAME} characters long"
    return names.path_segment_error(name)


def _validate_token(token: OAuthAccessToken | OAuthAuthorizeToken) -> Iterator[FieldError]:
    yield from _check_client_name("clientName", token.client_name)
    yield from _check_user(token.user_name, token.user_uid)
    yield from _check_scopes(token.scopes)
    if token.redirect_uri and (error := redirect_uri_error(token.redirect_uri)):
        yield FieldError("redirectURI", quoted(token.redirect_uri), error)


def _validate_access_token(token: OAuthAccessToken) -> Iterator[FieldError]:
    yield from _validate_token(token)
    if token.expires_in < 0:
        yield FieldError("expiresIn", quoted(token.expires_in), "must be 0 or greater")
    if token.inactivity_timeout_seconds < 0:
        yield FieldError("inactivityTimeoutSeconds", quoted(token.inactivity_timeout_seconds), "must be 0 or greater")


def _validate_access_token_update(old: OAuthAccessToken, new: OAuthAccessToken) -> Iterator[FieldError]:
    """Accept changes of metadata, and a longer inactivity timeout."""
    timeout, old_timeout = new.inactivity_timeout_seconds, old.inactivity_timeout_seconds
    if timeout not in (old_timeout, 0) and (old_timeout == 0 or timeout < old_timeout):
        yield FieldError("inactivityTimeoutSeconds", quoted(timeout), "cannot be less than the current value")
    if replace(new, metadata=old.metadata, inactivity_timeout_seconds=old_timeout) != old:
        yield FieldError("", "changed", "only metadata and inactivityTimeoutSeconds may be changed")


def _validate_authorize_token(token: OAuthAuthorizeToken) -> Iterator[FieldError]:
    yield from _validate_token(token)
    if token.expires_in <= 0:
        yield FieldError("expiresIn", quoted(token.expires_in), "must be greater than 0")
    if bool(token.code_challenge) != bool(token.code_challenge_method):
        detail = "codeChallenge and codeChallengeMethod are accepted together, or neither"
        yield FieldError("codeChallenge", "given", detail)
    elif token.code_challenge:
        if not is_code_challenge(token.code_challenge):
            detail = "43 to 128 characters of a-z A-Z 0-9 . _ ~ - are accepted"
            yield FieldError("codeChallenge", quoted(token.code_challenge[:200]), detail)
        if token.code_challenge_method not in (PKCE_PLAIN, PKCE_S256):
            method = quoted(token.code_challenge_method)
            yield FieldError("codeChallengeMethod", method, "plain and S256 are accepted", NOT_SUPPORTED)


def _validate_authorize_token_update(old: OAuthAuthorizeToken, new: OAuthAuthorizeToken) -> Iterator[FieldError]:
    if replace(new, metadata=old.metadata) != old:
        yield FieldError("", "changed", "only metadata may be changed")


def _validate_authorization(authorization: OAuthClientAuthorization) -> Iterator[FieldError]:
    expected = authorization_name(authorization.user_name, authorization.client_name)
    if authorization.metadata.name != expected:
        yield FieldError("metadata.name", quoted(authorization.metadata.name), f"must be {expected}")
    yield from _check_client_name("clientName", authorization.client_name)
    yield from _check_user(authorization.user_name, authorization.user_uid)
    yield from _check_scopes(authorization.scopes)


def _validate_authorization_update(
    old: OAuthClientAuthorization, new: OAuthClientAuthorization
) -> Iterator[FieldError]:
    for path, before, after in (
        ("clientName", old.client_name, new.client_name),
        ("userName", old.user_name, new.user_name),
        ("userUID", old.user_uid, new.user_uid),
    ):
        if before != after:
            yield FieldError(path, quoted(after), "field is immutable")


# --- resources --------------------------------------------------------------------------------------------------------


def _max_age(client: OAuthClient) -> str:
    seconds = client.access_token_max_age_seconds
    if seconds is None:
        return "default"
    return duration(seconds) if seconds else "unexpiring"


OAUTH_CLIENTS = Resource(
    type=OAuthClient,
    columns=(
        # Without the secret, which OpenShift shows here: to list clients is not to be one of them.
        NAME,
        Column(
            "WWW-Challenge", "Whether it gets challenges.", lambda client, _: client.respond_with_challenges, "boolean"
        ),
        Column("Token-Max-Age", "The lifetime of its tokens.", lambda client, _: _max_age(client)),
        Column("Redirect URIs", "Where users are sent back.", lambda client, _: ",".join(client.redirect_uris)),
    ),
    rules=KindRules(validate=_validate_client, validate_name=names.dns_subdomain_error),
    acted_on_by="the OAuth server of the master; three clients of `oc` always exist",
)

_TOKEN_COLUMNS = (
    NAME,
    Column("User Name", "The user.", lambda token, _: token.user_name),
    Column("Client Name", "The client.", lambda token, _: token.client_name),
    Column(
        "Created",
        "The time since the creation.",
        lambda token, now: age(token.metadata.creation_timestamp, now),
    ),
    Column(
        "Expires",
        "When the token expires.",
        lambda token, _: "never" if (end := expiration(token)) is None else format_time(end),
    ),
    Column("Redirect URI", "Where the user was sent back.", lambda token, _: token.redirect_uri),
    Column("Scopes", "What the token is good for.", lambda token, _: ",".join(token.scopes)),
)


def _selectable_token_fields(token: OAuthAccessToken | OAuthAuthorizeToken) -> dict[str, str]:
    return {"clientName": token.client_name, "userName": token.user_name, "userUID": token.user_uid}


OAUTH_ACCESS_TOKENS = Resource(
    type=OAuthAccessToken,
    columns=_TOKEN_COLUMNS,
    rules=KindRules(
        validate=_validate_access_token,
        validate_update=_validate_access_token_update,
        validate_name=_token_name_error,
    ),
    selectable_fields=lambda token: {**_selectable_token_fields(token), "authorizeToken": token.authorize_token},
    acted_on_by="the master, which authenticates requests by them; its OAuth server creates them",
)


def _from_stored(token: OAuthAccessToken) -> UserOAuthAccessToken:
    return UserOAuthAccessToken(**{name: getattr(token, name) for name in OAuthAccessToken.__struct_fields__})


def _to_stored(token: UserOAuthAccessToken) -> OAuthAccessToken:
    fields = {name: getattr(token, name) for name in OAuthAccessToken.__struct_fields__}
    return OAuthAccessToken(**{**fields, "api_version": "", "kind": ""})


USER_OAUTH_ACCESS_TOKENS = Resource(
    type=UserOAuthAccessToken,
    columns=_TOKEN_COLUMNS,
    rules=KindRules(validate_name=_token_name_error),
    selectable_fields=_selectable_token_fields,
    verbs=(*READ_VERBS, "delete"),
    create_denial="the OAuth server creates tokens",
    stored_as=Version(OAUTH_ACCESS_TOKENS, _from_stored, _to_stored),
    owner=lambda token: (token.user_name, token.user_uid),
)

OAUTH_AUTHORIZE_TOKENS = Resource(
    type=OAuthAuthorizeToken,
    columns=_TOKEN_COLUMNS,
    rules=KindRules(
        validate=_validate_authorize_token,
        validate_update=_validate_authorize_token_update,
        validate_name=_token_name_error,
    ),
    selectable_fields=_selectable_token_fields,
    acted_on_by="the OAuth server of the master, which creates them and exchanges them for access tokens",
)


def _default_authorization(authorization: OAuthClientAuthorization) -> OAuthClientAuthorization:
    """Set the name, which follows from the user and the client."""
    name = authorization_name(authorization.user_name, authorization.client_name)
    if authorization.metadata.name:
        return authorization
    return with_metadata(authorization, name=name, generate_name="")


OAUTH_CLIENT_AUTHORIZATIONS = Resource(
    type=OAuthClientAuthorization,
    columns=(
        NAME,
        Column("User Name", "The user.", lambda authorization, _: authorization.user_name),
        Column("Client Name", "The client.", lambda authorization, _: authorization.client_name),
        Column("Scopes", "What was granted.", lambda authorization, _: ",".join(authorization.scopes)),
    ),
    rules=KindRules(
        _default_authorization,
        _validate_authorization,
        _validate_authorization_update,
        validate_name=names.path_segment_error,
    ),
    selectable_fields=lambda authorization: {
        "clientName": authorization.client_name,
        "userName": authorization.user_name,
        "userUID": authorization.user_uid,
    },
    allow_create_on_update=True,
    acted_on_by="the OAuth server of the master, which does not ask again for what a user has granted",
)
