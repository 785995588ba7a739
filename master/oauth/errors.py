"""Errors of the OAuth server, with the codes of RFC 6749 and the descriptions of OpenShift. Pure."""

from __future__ import annotations

DESCRIPTIONS = {
    "invalid_request": (
        "The request is missing a required parameter, includes an invalid parameter value, includes a parameter more "
        "than once, or is otherwise malformed."
    ),
    "unauthorized_client": "The client is not authorized to request a token using this method.",
    "access_denied": "The resource owner or authorization server denied the request.",
    "unsupported_response_type": ("The authorization server does not support obtaining a token using this method."),
    "invalid_scope": "The requested scope is invalid, unknown, or malformed.",
    "server_error": (
        "The authorization server encountered an unexpected condition that prevented it from fulfilling the request."
    ),
    "unsupported_grant_type": "The authorization grant type is not supported by the authorization server.",
    "invalid_grant": (
        "The provided authorization grant (e.g., authorization code, resource owner credentials) or refresh token is "
        "invalid, expired, revoked, does not match the redirection URI used in the authorization request, or was "
        "issued to another client."
    ),
    "invalid_client": (
        "Client authentication failed (e.g., unknown client, no client authentication included, or unsupported "
        "authentication method)."
    ),
}


class OAuthError(Exception):
    """An error that the client gets as JSON with the status 400."""

    def __init__(self, code: str, description: str = "") -> None:
        super().__init__(description or DESCRIPTIONS[code])
        self.code = code
        self.description = description or DESCRIPTIONS[code]


class RedirectError(OAuthError):
    """An error that the client gets in the query of its redirect URI."""
