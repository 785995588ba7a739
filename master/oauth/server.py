"""The HTTP handlers of the OAuth server: authorize, token, info, login, logout, and the pages that show a token.

`OAuthServer.handle` serves one request. Every response carries the headers of `SECURITY_HEADERS`, and texts of a
request only in escaped HTML. A redirect leads to a redirect URI of the client, to this server or to an identity
provider.
Source: RFC 6749, RFC 7636, RFC 8414, RFC 9700, and the OAuth server of OpenShift.
"""

from __future__ import annotations

import base64
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from master.auth.identity_providers.allow_deny_all import DenyAllProvider
from master.auth.identity_providers.provider import (
    HeaderProvider,
    IdentityProvider,
    PasswordProvider,
    ProviderError,
    RedirectProvider,
)
from master.auth.oauth_tokens import GroupIndex
from master.oauth import pages
from master.oauth.authorize import (
    TOKEN,
    AuthorizeRequest,
    Client,
    parse_authorize_request,
    redirect_uri_of,
    single_parameters,
)
from master.oauth.clients import BROWSER_CLIENT, ClientRegistry
from master.oauth.errors import OAuthError, RedirectError
from master.oauth.identity_mapper import AUTHENTICATION_ERROR, MappingError
from master.oauth.logins import Busy, Logins
from master.oauth.messages import (
    Annotate,
    OAuthRequest,
    PageError,
    authorization_of,
    basic_credentials,
    callback_state,
    client_credentials,
    content_security_policy,
    delete_cookie,
    error_page,
    html_response,
    json_response,
    parse_parameters,
    redirect,
    set_cookie,
    target_of,
    with_scopes,
    with_state,
)
from master.oauth.paths import (
    APPROVE_PATH,
    AUTHORIZE_PATH,
    CALLBACK_PATH,
    DISCOVERY_PATH,
    DISPLAY_PATH,
    IMPLICIT_PATH,
    INFO_PATH,
    LOGIN_PATH,
    LOGOUT_PATH,
    REQUEST_PATH,
    STYLE_PATH,
    TOKEN_PATH,
)
from master.oauth.redirect_uris import match_redirect_uri, origin, server_relative, with_fragment, with_query
from master.oauth.session import (
    CSRF_COOKIE,
    SESSION_COOKIE,
    EndedSessions,
    Session,
    SessionSealer,
    is_same_csrf_token,
    new_csrf_token,
)
from master.oauth.tokens import TokenIssuer
from master.registry.creation import ObjectCreation
from master.registry.users import user_key
from master.resources.metadata import Clock
from master.resources.oauth import GRANT_DENY, USER_SCOPES
from master.resources.users import User
from master.storage.interface import Conflict, Storage

log = logging.getLogger(__name__)

REALM = "openshift"
CSRF_HEADER = "X-CSRF-Token"
"""A client that can send this header is no page of another site, so it may be asked for a password."""

SECURITY_HEADERS = {
    "Cache-Control": "no-cache, no-store, max-age=0, must-revalidate",
    "Pragma": "no-cache",
    "Expires": "0",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "X-XSS-Protection": "1; mode=block",
}


class LoginError(Exception):
    """A login that failed. `reason` is a code of `pages.REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(pages.REASONS[reason])
        self.reason = reason


Handler = Callable[[OAuthRequest], Awaitable[web.Response]]


class OAuthServer:
    """The OAuth server. `url` returns the URL of this server, without a slash at the end."""

    def __init__(
        self,
        *,
        storage: Storage,
        creation: ObjectCreation,
        clock: Clock,
        providers: tuple[IdentityProvider, ...],
        sealer: SessionSealer,
        service_account_of: Callable[[str], str],
        groups: GroupIndex,
        url: Callable[[], str],
        service_account_grant_method: str,
    ) -> None:
        self._store = storage
        self._creation = creation
        self._clock = clock
        self._providers = providers or (IdentityProvider("deny_all", True, True, "claim", DenyAllProvider("deny_all")),)
        self._sealer = sealer
        self._ended_sessions = EndedSessions()
        self._url = url
        self._clients = ClientRegistry(storage, service_account_grant_method)
        self._tokens = TokenIssuer(storage, creation, clock, service_account_of)
        self._logins = Logins(storage, creation, groups)
        self._handlers: Mapping[str, Mapping[str, Handler]] = {
            DISCOVERY_PATH: {"GET": self._discover},
            AUTHORIZE_PATH: {"GET": self._authorize, "POST": self._authorize},
            APPROVE_PATH: {"GET": self._show_grant, "POST": self._approve},
            TOKEN_PATH: {"POST": self._redeem},
            INFO_PATH: {"GET": self._describe_token},
            REQUEST_PATH: {"GET": self._request_token},
            DISPLAY_PATH: {"GET": self._show_display_button, "POST": self._display_token},
            IMPLICIT_PATH: {"GET": self._explain_implicit},
            STYLE_PATH: {"GET": self._style},
            LOGIN_PATH: {"GET": self._show_login, "POST": self._login},
            LOGOUT_PATH: {"POST": self._logout},
            CALLBACK_PATH: {"GET": self._callback},
        }

    async def handle(
        self, http: web.Request, address: str, certificate: bytes | None, annotate: Annotate
    ) -> web.Response:
        """Return the response to a request whose path this server `serves`."""
        response = await self._handle(http, address, certificate, annotate)
        response.headers.update({key: value for key, value in SECURITY_HEADERS.items() if key not in response.headers})
        response.headers.setdefault("Content-Security-Policy", content_security_policy(""))
        return response

    async def _handle(
        self, http: web.Request, address: str, certificate: bytes | None, annotate: Annotate
    ) -> web.Response:
        path = http.path
        for prefix in (LOGIN_PATH, CALLBACK_PATH):
            if path.startswith(f"{prefix}/") and self._provider(path.removeprefix(f"{prefix}/")) is not None:
                path = prefix
        handlers = self._handlers.get(path)
        if handlers is None:
            return error_page("not_found", "The page does not exist.", 404)
        handler = handlers.get(http.method)
        if handler is None:
            return web.Response(status=405, headers={"Allow": ", ".join(handlers)})
        return await _answer(handler, http, address, certificate, annotate)

    def _provider(self, name: str) -> IdentityProvider | None:
        return next((provider for provider in self._providers if provider.name == name), None)

    # --- discovery and explanations --------------------------------------------------------------------------------

    async def _discover(self, _: OAuthRequest) -> web.Response:
        """Return the metadata of the server (RFC 8414)."""
        url = self._url()
        return json_response(
            {
                "issuer": url,
                "authorization_endpoint": f"{url}{AUTHORIZE_PATH}",
                "token_endpoint": f"{url}{TOKEN_PATH}",
                "scopes_supported": sorted(USER_SCOPES),
                "response_types_supported": ["code", "token"],
                "grant_types_supported": ["authorization_code", "implicit"],
                "code_challenge_methods_supported": ["plain", "S256"],
            }
        )

    async def _explain_implicit(self, _: OAuthRequest) -> web.Response:
        text = (
            "You have reached this page by following a redirect Location header from an OAuth authorize request.\n\n"
            "If a response was requested, it is in the fragment of this URL: the token is the value of access_token.\n"
        )
        return web.Response(text=text)

    async def _style(self, _: OAuthRequest) -> web.Response:
        headers = {"Cache-Control": "public, max-age=3600"}
        return web.Response(text=pages.STYLE, content_type="text/css", headers=headers)

    # --- authorize -------------------------------------------------------------------------------------------------

    async def _authorize(self, request: OAuthRequest) -> web.Response:
        """Send the user back to the client with a code or a token, after a login and a grant if need be."""
        parameters = request.parameters
        client = self._clients.find(parameters.get("client_id", ""))
        redirect_uri = redirect_uri_of(client, parameters)
        assert client is not None
        try:
            if parameters.get("error") == "access_denied":
                raise RedirectError("access_denied")
            return await self._authorize_client(request, client, redirect_uri)
        except RedirectError as error:
            failure = {"error": error.code, "error_description": error.description}
            return redirect(with_query(redirect_uri, with_state(failure, parameters)))

    async def _authorize_client(self, request: OAuthRequest, client: Client, redirect_uri: str) -> web.Response:
        authorize_request = parse_authorize_request(client, redirect_uri, request.parameters)
        user = await self._authenticate(request)
        if user is None:
            return await self._demand_login(request, client)
        if not self._tokens.is_granted(user, authorize_request):
            if client.grant_method == GRANT_DENY:
                raise RedirectError("access_denied")
            return self._redirect_to_grant(authorize_request, request)
        self._end_session(request)
        response = await self._issue(user, authorize_request)
        delete_cookie(response, SESSION_COOKIE)
        return response

    async def _issue(self, user: User, request: AuthorizeRequest) -> web.Response:
        state = {"state": request.state}
        if request.response_type == TOKEN:
            issued = await self._tokens.issue_token(user, request)
            return redirect(with_fragment(request.redirect_uri, {**issued.parameters(), **state}))
        code = await self._tokens.issue_code(user, request)
        return redirect(with_query(request.redirect_uri, {"code": code, **state}))

    async def _authenticate(self, request: OAuthRequest) -> User | None:
        """Return the user of a session, of a proxy's headers, or of Basic credentials; None if there is none.

        Raises ProviderError, MappingError and Busy.
        """
        if (user := await self._browser_user(request)) is not None:
            return user
        credentials = basic_credentials(request.http.headers.get("Authorization", ""))
        if credentials is None or not request.http.headers.get(CSRF_HEADER):
            return None
        challenging = tuple(provider for provider in self._providers if provider.is_challenge)
        return await self._logins.check_password(challenging, *credentials, request.address, request.annotate)

    async def _browser_user(self, request: OAuthRequest) -> User | None:
        """Return the user of a session or of a proxy's headers; None if there is none.

        Raises ProviderError and MappingError.
        """
        session = self._session(request)
        if session is not None and (user := self._user(session.name, session.uid)) is not None:
            return user
        for provider in self._providers:
            if isinstance(provider.authenticator, HeaderProvider):
                account = provider.authenticator.authenticate_headers(request.http.headers, request.certificate)
                if account is not None:
                    return await self._logins.map_account(provider, account, request.annotate)
        return None

    def _session(self, request: OAuthRequest) -> Session | None:
        """Return the session of a request; None if it has none, or one that has ended."""
        session = self._sealer.open(request.http.cookies.get(SESSION_COOKIE, ""), self._clock())
        return None if session is None or session in self._ended_sessions else session

    def _end_session(self, request: OAuthRequest) -> None:
        """End the session of a request, also for a copy of its cookie."""
        if (session := self._session(request)) is not None:
            self._ended_sessions.add(session, self._clock())

    def _user(self, name: str, uid: str) -> User | None:
        """Return the User of this name and uid; None if it does not exist."""
        record = self._store.get_uncommitted(user_key(name))
        if record is None or record.object.metadata.uid != uid or record.object.metadata.deletion_timestamp:
            return None
        user: User = record.object
        return user

    async def _demand_login(self, request: OAuthRequest, client: Client) -> web.Response:
        """Respond to a request without a user: with a challenge, or by sending the browser to a login."""
        if client.responds_with_challenges:
            return self._challenge(request)
        candidates = [provider for provider in self._providers if provider.is_login]
        chosen = request.parameters.get("idp", "")
        if chosen:
            candidates = [provider for provider in candidates if provider.name == chosen]
            if not candidates:
                raise PageError("unknown_provider", "The identity provider does not exist.")
        if not candidates:
            raise RedirectError("access_denied")
        if len(candidates) > 1:
            links = [(provider.name, with_query(target_of(request), {"idp": provider.name})) for provider in candidates]
            return html_response(pages.provider_selection(links))
        return await self._redirect_to_provider(request, candidates[0], target_of(request))

    def _challenge(self, request: OAuthRequest) -> web.Response:
        """Return 401 as `oc` expects it. Only a client that sends X-CSRF-Token is asked for a password."""
        if not request.http.headers.get(CSRF_HEADER):
            text = "A non-empty X-CSRF-Token header is required to receive basic-auth challenges"
            return web.Response(status=401, text=text, headers={"Warning": f'199 Origin "{text}"'})
        has_password_provider = any(
            provider.is_challenge and isinstance(provider.authenticator, PasswordProvider)
            for provider in self._providers
        )
        if has_password_provider:
            return web.Response(status=401, headers={"WWW-Authenticate": f'Basic realm="{REALM}"'})
        for provider in self._providers:
            if provider.is_challenge and isinstance(provider.authenticator, HeaderProvider):
                return redirect(self._proxy_url(provider.authenticator.challenge_url, target_of(request)))
        url = f"{self._url()}{REQUEST_PATH}"
        text = f"You must obtain an API token by visiting {url}"
        headers = {"Warning": f'199 Origin "{text}"', "Link": f'<{url}>; rel="related"'}
        return web.Response(status=401, text=text, headers=headers)

    async def _redirect_to_provider(self, request: OAuthRequest, provider: IdentityProvider, then: str) -> web.Response:
        authenticator = provider.authenticator
        if isinstance(authenticator, HeaderProvider):
            return redirect(self._proxy_url(authenticator.login_url, then))
        if isinstance(authenticator, RedirectProvider):
            csrf = request.csrf_token() or new_csrf_token()
            state = base64.urlsafe_b64encode(urllib.parse.urlencode({"csrf": csrf, "then": then}).encode()).decode()
            try:
                target = await authenticator.authorization_url(self._callback_url(provider), state)
            except ProviderError as error:
                reason = _reason(error, provider.name)
                raise PageError(reason, pages.REASONS[reason], 500) from error
            response = redirect(target)
            set_cookie(response, CSRF_COOKIE, csrf)
            return response
        return redirect(with_query(self._login_path(provider), {"then": then}))

    def _login_path(self, provider: IdentityProvider) -> str:
        """Return the path of a provider's login page. With one such page it is the path without a name."""
        with_page = [
            other for other in self._providers if other.is_login and isinstance(other.authenticator, PasswordProvider)
        ]
        return LOGIN_PATH if len(with_page) == 1 else f"{LOGIN_PATH}/{urllib.parse.quote(provider.name, safe='')}"

    def _callback_url(self, provider: IdentityProvider) -> str:
        return f"{self._url()}{CALLBACK_PATH}/{urllib.parse.quote(provider.name, safe='')}"

    def _proxy_url(self, template: str, target: str) -> str:
        """Return the URL of an authenticating proxy, which returns to `target` of this server."""
        return (
            template.replace("${url}", urllib.parse.quote(f"{self._url()}{target}", safe=""))
            .replace("${server-relative-url}", urllib.parse.quote(target, safe=""))
            .replace("${query}", target.partition("?")[2])
        )

    # --- grants ----------------------------------------------------------------------------------------------------

    def _redirect_to_grant(self, authorize_request: AuthorizeRequest, request: OAuthRequest) -> web.Response:
        parameters = {
            "client_id": authorize_request.client.name,
            "redirect_uri": authorize_request.redirect_uri,
            "scope": " ".join(authorize_request.scopes),
            "then": target_of(request),
        }
        return redirect(with_query(APPROVE_PATH, parameters))

    async def _show_grant(self, request: OAuthRequest) -> web.Response:
        """Ask the user which scopes the client gets."""
        user = await self._browser_user(request)
        if user is None:
            return redirect(authorization_of(request))
        authorize_request = self._grant_request(request)
        client, granted = authorize_request.client, self._tokens.granted_scopes(user, authorize_request.client)
        csrf = request.csrf_token() or new_csrf_token()
        fields = {
            "then": request.parameters.get("then", ""),
            "csrf": csrf,
            "client_id": client.name,
            "user_name": user.metadata.name,
            "redirect_uri": authorize_request.redirect_uri,
        }
        scopes = [scope for scope in authorize_request.scopes if scope not in granted]
        response = html_response(
            pages.grant(client, user.metadata.name, scopes, granted, fields), origin(authorize_request.redirect_uri)
        )
        set_cookie(response, CSRF_COOKIE, csrf)
        return response

    async def _approve(self, request: OAuthRequest) -> web.Response:
        """Grant the chosen scopes, and go on with the authorization; or report to the client that the user denies."""
        user = await self._browser_user(request)
        if user is None:
            return redirect(authorization_of(request))
        request.require_csrf_token()
        if request.parameters.get("user_name") != user.metadata.name:
            raise PageError("user_mismatch", "User did not match.")
        then = authorization_of(request)
        authorize_request = self._grant_request(request)
        # A form without a ticked scope must not become a request for the default one.
        if "approve" not in request.parameters or not request.parameters.get("scope"):
            return redirect(with_query(then, {"error": "access_denied"}))
        try:
            await self._tokens.grant(user, authorize_request.client, authorize_request.scopes)
        except Conflict as error:
            text = "The grant was changed at the same time. Please try again."
            raise PageError("conflict", text, 409) from error
        return redirect(with_scopes(then, authorize_request.scopes))

    def _grant_request(self, request: OAuthRequest) -> AuthorizeRequest:
        """Return the request of a grant page or form. Raises OAuthError and PageError."""
        parameters = {**request.parameters, "response_type": TOKEN}
        client = self._clients.find(parameters.get("client_id", ""))
        redirect_uri = redirect_uri_of(client, parameters)
        assert client is not None
        if client.grant_method == GRANT_DENY:
            raise PageError("access_denied", "The client cannot be granted access.", 403)
        return parse_authorize_request(client, redirect_uri, parameters)

    # --- tokens ----------------------------------------------------------------------------------------------------

    async def _redeem(self, request: OAuthRequest) -> web.Response:
        """Exchange a code for a token (RFC 6749, 4.1.3)."""
        parameters = request.parameters
        client_id, secret = client_credentials(request)
        match parameters.get("grant_type", ""):
            case "authorization_code":
                pass
            case "password" | "client_credentials" | "assertion" | "refresh_token":
                raise OAuthError("access_denied")
            case "":
                raise OAuthError("invalid_request")
            case _:
                raise OAuthError("unsupported_grant_type")
        issued = await self._tokens.redeem(
            self._clients.find(client_id),
            secret,
            parameters.get("code", ""),
            parameters.get("redirect_uri", ""),
            parameters.get("code_verifier", ""),
        )
        return json_response(issued.parameters())

    async def _describe_token(self, request: OAuthRequest) -> web.Response:
        scheme, _, token = request.http.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.parameters.get("code", "")
        return json_response(self._tokens.describe(token.strip()))

    async def _request_token(self, _: OAuthRequest) -> web.Response:
        """Send the user to the authorization of the client that shows tokens."""
        parameters = {
            "client_id": BROWSER_CLIENT,
            "redirect_uri": f"{self._url()}{DISPLAY_PATH}",
            "response_type": "code",
        }
        return redirect(with_query(AUTHORIZE_PATH, parameters))

    async def _show_display_button(self, request: OAuthRequest) -> web.Response:
        """Show a button. A page of another site could make the browser get a page, but not press the button."""
        if error := request.parameters.get("error", ""):
            code = error if error in ("access_denied", "invalid_scope") else "invalid_request"
            return error_page(code, "No token was requested.", 200)
        code = request.parameters.get("code", "")
        if not code:
            return redirect(REQUEST_PATH)
        csrf = request.csrf_token() or new_csrf_token()
        response = html_response(pages.display_button(code, csrf))
        set_cookie(response, CSRF_COOKIE, csrf)
        return response

    async def _display_token(self, request: OAuthRequest) -> web.Response:
        request.require_csrf_token()
        client = self._clients.find(BROWSER_CLIENT)
        secret = client.secrets[0] if client is not None and client.secrets else ""
        redirect_uri, code = f"{self._url()}{DISPLAY_PATH}", request.parameters.get("code", "")
        try:
            issued = await self._tokens.redeem(client, secret, code, redirect_uri, "")
        except OAuthError as error:
            return error_page(error.code, "The code has expired or was used. Request another token.", 400)
        return html_response(pages.display_token(issued.access_token, self._url(), REQUEST_PATH))

    # --- login and logout ------------------------------------------------------------------------------------------

    async def _show_login(self, request: OAuthRequest) -> web.Response:
        then = server_relative(request.parameters.get("then", ""))
        if not then or self._login_provider(request) is None:
            return redirect("/")
        csrf = request.csrf_token() or new_csrf_token()
        page = pages.login(request.http.rel_url.raw_path, then, csrf, request.parameters.get("reason", ""))
        response = html_response(page, self._redirect_origin(then))
        set_cookie(response, CSRF_COOKIE, csrf)
        return response

    def _redirect_origin(self, then: str) -> str:
        """Return the origin to which the authorization in `then` redirects, for the Content-Security-Policy.

        A browser follows the redirects after a form only to the origins in `form-action`.
        """
        try:
            parameters = single_parameters(urllib.parse.parse_qsl(then.partition("?")[2]))
        except OAuthError:
            return ""
        client = self._clients.find(parameters.get("client_id", ""))
        if client is None:
            return ""
        return origin(match_redirect_uri(client.redirect_uris, parameters.get("redirect_uri", "")))

    def _login_provider(self, request: OAuthRequest) -> IdentityProvider | None:
        """Return the provider whose login page the path is: the named one, or the only one."""
        name = request.http.path.removeprefix(LOGIN_PATH).removeprefix("/")
        for provider in self._providers:
            is_named = not name or provider.name == name
            if is_named and provider.is_login and isinstance(provider.authenticator, PasswordProvider):
                return provider
        return None

    async def _login(self, request: OAuthRequest) -> web.Response:
        """Check name and password of the form. The response is always a redirect, so a reload sends no password."""
        then = server_relative(request.parameters.get("then", ""))
        provider = self._login_provider(request)
        if not then or provider is None:
            return redirect("/")
        try:
            user = await self._form_user(provider, request)
        except LoginError as error:
            return redirect(with_query(request.http.rel_url.raw_path, {"reason": error.reason, "then": then}))
        return self._logged_in(user, then)

    async def _form_user(self, provider: IdentityProvider, request: OAuthRequest) -> User:
        """Return the user whose name and password are in the form. Raises LoginError."""
        if not request.has_csrf_token:
            raise LoginError("token_expired")
        username, password = request.parameters.get("username", ""), request.parameters.get("password", "")
        if not username:
            raise LoginError("user_required")
        try:
            user = await self._logins.check_password((provider,), username, password, request.address, request.annotate)
        except (MappingError, ProviderError) as error:
            raise LoginError(_reason(error, provider.name)) from error
        except Busy as error:
            raise LoginError("busy") from error
        if user is None:
            raise LoginError("access_denied")
        return user

    def _logged_in(self, user: User, then: str) -> web.Response:
        response = redirect(then)
        meta = user.metadata
        set_cookie(response, SESSION_COOKIE, self._sealer.seal(meta.name, meta.uid, self._clock()))
        return response

    async def _logout(self, request: OAuthRequest) -> web.Response:
        self._end_session(request)
        then = server_relative(request.parameters.get("then", ""))
        response = redirect(then) if then else html_response(pages.logged_out())
        delete_cookie(response, SESSION_COOKIE)
        return response

    async def _callback(self, request: OAuthRequest) -> web.Response:
        """Log in the person whom a provider has redirected back."""
        name = request.http.path.removeprefix(CALLBACK_PATH).removeprefix("/")
        provider = self._provider(name)
        if provider is None or not isinstance(provider.authenticator, RedirectProvider):
            raise PageError("not_found", "The page does not exist.", 404)
        state = callback_state(request.parameters.get("state", ""))
        then = server_relative(state.get("then", ""))
        if not is_same_csrf_token(request.csrf_token(), state.get("csrf", "")) or not then:
            raise PageError("token_expired", pages.REASONS["token_expired"])
        try:
            account = await provider.authenticator.redeem(request.parameters, self._callback_url(provider))
            user = await self._logins.map_account(provider, account, request.annotate)
        except (ProviderError, MappingError) as error:
            reason = _reason(error, provider.name)
            raise PageError(reason, pages.REASONS[reason]) from error
        return self._logged_in(user, then)


def _reason(error: ProviderError | MappingError, provider_name: str) -> str:
    """Log why a login failed, and return the code that the person gets to see."""
    log.warning("login failed", extra={"provider": provider_name, "error": str(error)})
    return error.reason if isinstance(error, MappingError) else AUTHENTICATION_ERROR


async def _answer(
    handler: Handler, http: web.Request, address: str, certificate: bytes | None, annotate: Annotate
) -> web.Response:
    """Return the response of a handler, or that of its error."""
    try:
        parameters = await parse_parameters(http)
        return await handler(OAuthRequest(http, parameters, address, certificate, annotate))
    except OAuthError as error:
        return json_response({"error": error.code, "error_description": error.description}, 400)
    except PageError as error:
        return error_page(error.code, error.text, error.status)
    except (ProviderError, MappingError) as error:
        reason = _reason(error, "")
        return error_page(reason, pages.REASONS[reason], 500)
    except Busy:
        return web.Response(status=429, text="too many logins are in progress", headers={"Retry-After": "5"})
