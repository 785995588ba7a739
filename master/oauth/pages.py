"""The HTML pages of the OAuth server: login, choice of a provider, grant, token, error. Pure.

They need no script and have no inline style, so the Content-Security-Policy forbids both. Every text from outside is
escaped by `escape`.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from master.oauth.authorize import Client
from master.oauth.paths import STYLE_PATH
from master.resources.oauth import USER_FULL, USER_SCOPES, parse_role_scope

STYLE = """\
:root {
  color-scheme: light dark;
  --text: #1c2126; --muted: #545c66; --page: #f3f5f7; --panel: #ffffff; --line: #7b848e; --rule: #d5dae0;
  --accent: #0a58a6; --accent-strong: #08457f; --on-accent: #ffffff; --danger: #a81d16; --danger-panel: #fdeceb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e8ebee; --muted: #a9b2bc; --page: #14181c; --panel: #1f252b; --line: #8a949f; --rule: #39424b;
    --accent: #82b8f2; --accent-strong: #a9cff8; --on-accent: #0d1a28; --danger: #ff9d94; --danger-panel: #3a1f1e;
  }
}
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0; background: var(--page); color: var(--text); }
main { width: min(26rem, 100% - 1rem); margin: clamp(.5rem, 10vh, 6rem) auto .5rem; padding: clamp(1rem, 6vw, 2rem);
  background: var(--panel); border: 1px solid var(--rule); border-radius: .5rem; overflow-wrap: anywhere; }
main.wide { width: min(60rem, 100% - 1rem); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.0625rem; margin: 1.5rem 0 .5rem; }
p { margin: 1rem 0; }
main > :last-child { margin-bottom: 0; }
a { color: var(--accent); text-underline-offset: .15em; }
a:hover { color: var(--accent-strong); }
:focus-visible { outline: .1875rem solid var(--accent); outline-offset: .125rem; }
label { display: block; margin: 1rem 0 .25rem; font-weight: 600; }
input[type=text], input[type=password] { display: block; width: 100%; font: inherit; padding: .5rem .75rem;
  color: inherit; background: var(--panel); border: 1px solid var(--line); border-radius: .25rem; }
input[type=checkbox] { width: 1.25rem; height: 1.25rem; margin: .125rem 0 0; flex: none; accent-color: var(--accent); }
button { font: inherit; font-weight: 600; margin: 1.25rem .5rem 0 0; padding: .5rem 1.25rem; cursor: pointer;
  color: var(--on-accent); background: var(--accent); border: 1px solid var(--accent); border-radius: .25rem; }
button:hover { background: var(--accent-strong); border-color: var(--accent-strong); }
button.secondary { color: var(--accent); background: none; }
button.secondary:hover { color: var(--accent-strong); border-color: var(--accent-strong); }
ul { margin: 0; padding-left: 1.25rem; }
ul.choices { list-style: none; padding: 0; }
ul.choices a { display: block; margin: .75rem 0 0; padding: .625rem 1rem; font-weight: 600;
  border: 1px solid var(--line); border-radius: .25rem; text-decoration: none; }
ul.choices a:hover { border-color: var(--accent-strong); text-decoration: underline; }
.error { padding: .5rem .75rem; color: var(--danger); background: var(--danger-panel);
  border-left: .25rem solid var(--danger); border-radius: .25rem; }
fieldset { margin: 1rem 0; padding: 0; border: 0; min-width: 0; }
legend { padding: 0; font-weight: 600; }
.scope { display: flex; gap: .75rem; align-items: flex-start; margin: .75rem 0; }
.scope label { margin: 0; }
.scope span { display: block; font-weight: 400; }
.description { color: var(--muted); }
.warning { color: var(--danger); }
pre, code { font: .875rem/1.5 ui-monospace, monospace; }
pre { margin: 0; padding: .75rem; white-space: pre-wrap; word-break: break-all;
  background: var(--page); border: 1px solid var(--rule); border-radius: .25rem; }
"""

REASONS: Mapping[str, str] = {
    "user_required": "Login is required. Please try again.",
    "token_expired": "Could not check CSRF token. Please try again.",
    "access_denied": "Invalid login or password. Please try again.",
    "mapping_claim_error": "Could not create user.",
    "mapping_lookup_error": "Could not find user.",
    "authentication_error": "An authentication error occurred.",
    "busy": "Too many logins are in progress. Please try again.",
}
"""Code in the parameter `reason` → the text on the login page."""


WIDE, DESCRIBED_BY_ERROR = ' class="wide"', ' aria-describedby="error"'


def _page(title: str, body: str, *, wide: bool = False) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="{STYLE_PATH}">\n</head>\n<body>\n'
        f"<main{WIDE if wide else ''}>\n<h1>{escape(title)}</h1>\n{body}</main>\n</body>\n</html>\n"
    )


def _hidden(fields: Mapping[str, str]) -> str:
    return "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">\n' for name, value in fields.items()
    )


def _error(text: str) -> str:
    return f'<p class="error" id="error" role="alert">{escape(text)}</p>\n' if text else ""


def login(action: str, then: str, csrf: str, reason: str = "") -> str:
    """Return the page with the fields for name and password. The field with the focus is described by the error."""
    error_text = REASONS.get(reason, "")
    return _page(
        "Log in",
        f"{_error(error_text)}"
        f'<form method="post" action="{escape(action)}" id="co-login-form">\n'
        f"{_hidden({'then': then, 'csrf': csrf})}"
        '<label for="inputUsername">Username</label>\n'
        '<input type="text" id="inputUsername" name="username" autocomplete="username" autocapitalize="off" '
        f'spellcheck="false"{DESCRIBED_BY_ERROR if error_text else ""} required autofocus>\n'
        '<label for="inputPassword">Password</label>\n'
        '<input type="password" id="inputPassword" name="password" autocomplete="current-password" required>\n'
        '<button type="submit" id="co-login-button">Log in</button>\n</form>\n',
    )


def provider_selection(links: Iterable[tuple[str, str]]) -> str:
    """Return the page with a link for each identity provider: (name, URL)."""
    items = "".join(f'<li><a href="{escape(url)}">{escape(name)}</a></li>\n' for name, url in links)
    return _page("Log in with", f'<nav aria-label="Identity providers">\n<ul class="choices">\n{items}</ul>\n</nav>\n')


def scope_description(scope: str) -> tuple[str, str]:
    """Return what a scope permits, and a warning; the warning may be empty."""
    if scope in USER_SCOPES:
        warning = "Includes any access you have to escalating resources like secrets" if scope == USER_FULL else ""
        return USER_SCOPES[scope], warning
    role_scope = parse_role_scope(scope)
    if role_scope is None:
        return scope, ""
    place = "server-wide" if role_scope.namespace == "*" else f'in project "{role_scope.namespace}"'
    extent = "Includes access to escalating resources like secrets" if role_scope.is_escalating else ""
    return f'Anything you can do that is also allowed by the "{role_scope.role}" role {place}', extent


def grant(
    client: Client, user_name: str, scopes: Sequence[str], granted: Sequence[str], fields: Mapping[str, str]
) -> str:
    """Return the page that asks whether a client gets scopes. `granted` are those that it has already.

    `fields` are the hidden fields of the form: `then`, `csrf`, `client_id`, `user_name`, `redirect_uri`.
    """
    kind = "Service account" if client.is_service_account else "Client"
    items = []
    for number, scope in enumerate(scopes):
        description, warning = scope_description(scope)
        warning_text = f'<span class="warning">{escape(warning)}</span>' if warning else ""
        items.append(
            f'<div class="scope"><input type="checkbox" id="scope-{number}" name="scope" value="{escape(scope)}" '
            f'checked>\n<label for="scope-{number}">{escape(scope)}'
            f'<span class="description">{escape(description)}</span>{warning_text}</label></div>\n'
        )
    existing = "".join(f"<li>{escape(scope)}</li>\n" for scope in granted)
    existing_access = f"<h2>Existing access</h2>\n<ul>\n{existing}</ul>\n" if granted else ""
    target = urllib.parse.urlsplit(fields["redirect_uri"])
    return _page(
        "Authorize access",
        f"<p>{kind} <strong>{escape(client.name)}</strong> requests permission to access your account "
        f"({escape(user_name)}).</p>\n"
        f'<form method="post">\n{_hidden(fields)}{existing_access}'
        f"<fieldset>\n<legend>Requested permissions</legend>\n{''.join(items)}</fieldset>\n"
        f"<p>You will be redirected to {escape(f'{target.scheme}://{target.netloc}{target.path}')}</p>\n"
        '<button type="submit" name="approve" value="Allow selected permissions">Allow selected permissions</button>\n'
        '<button type="submit" name="deny" value="Deny" class="secondary">Deny</button>\n</form>\n',
    )


def display_button(code: str, csrf: str) -> str:
    """Return the page with the button that shows a token. To get the page redeems nothing."""
    return _page(
        "Display token",
        "<p>You are logged in. Whoever has the token can do everything that you can do until it expires.</p>\n"
        f'<form method="post">\n{_hidden({"code": code, "csrf": csrf})}'
        '<button type="submit">Display token</button>\n</form>\n',
    )


def display_token(access_token: str, url: str, request_path: str) -> str:
    """Return the page that shows a token, and how to use it."""
    login_command = f"oc login --token={access_token} --server={url}"
    kubectl = f"kubectl --server={url} --token={access_token} --certificate-authority=ca.crt get projects"
    curl = f'curl -H "Authorization: Bearer {access_token}" "{url}/apis/user.openshift.io/v1/users/~"'
    return _page(
        "Your token",
        f"<h2>Your API token is</h2>\n<pre><code>{escape(access_token)}</code></pre>\n"
        f"<h2>Log in with this token</h2>\n<pre>{escape(login_command)}</pre>\n"
        "<h2>Use this token with kubectl and the CA certificate of the master</h2>\n"
        f"<pre>{escape(kubectl)}</pre>\n"
        f"<h2>Use this token directly against the API</h2>\n<pre>{escape(curl)}</pre>\n"
        f'<p><a href="{escape(request_path)}">Request another token</a></p>\n',
        wide=True,
    )


def error(code: str, text: str) -> str:
    """Return the page of an error. It has no text of the request."""
    return _page("Error", f"{_error(text)}<p>Code: <code>{escape(code)}</code></p>\n")


def logged_out() -> str:
    """Return the page after a logout."""
    return _page("Logged out", "<p>You are logged out.</p>\n")
