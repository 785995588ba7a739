"""The paths of the OAuth server. Pure."""

from __future__ import annotations

DISCOVERY_PATH = "/.well-known/oauth-authorization-server"
AUTHORIZE_PATH, APPROVE_PATH, TOKEN_PATH = "/oauth/authorize", "/oauth/authorize/approve", "/oauth/token"
INFO_PATH, REQUEST_PATH = "/oauth/info", "/oauth/token/request"
LOGIN_PATH, LOGOUT_PATH, CALLBACK_PATH = "/login", "/logout", "/oauth2callback"
DISPLAY_PATH, IMPLICIT_PATH, STYLE_PATH = "/oauth/token/display", "/oauth/token/implicit", "/oauth/style.css"


def serves(path: str) -> bool:
    """Return whether a path is one of the OAuth server's."""
    return path in (DISCOVERY_PATH, LOGIN_PATH, LOGOUT_PATH) or path.startswith(
        ("/oauth/", f"{LOGIN_PATH}/", f"{CALLBACK_PATH}/")
    )
