"""The pages: no text from outside becomes markup."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.oauth import pages
from master.oauth.authorize import Client
from master.oauth.paths import STYLE_PATH

HOSTILE = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [
                "<script>",
                "</script>",
                '"',
                "'",
                "<",
                ">",
                "&",
                "&lt;",
                "`",
                "=",
                " onload=x ",
                "</main>",
                "<!--",
                "\0",
                "a",
            ]
        ),
        max_size=6,
    ).map("".join),
)


class Markup(HTMLParser):
    """The tags of a page with the names of their attributes, and the texts and values in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the tag."""
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.values.append(data)

    def handle_comment(self, data: str) -> None:
        """Keep a comment as a tag."""
        self.tags.append(("comment", (data,)))


def grant_page(text: str) -> str:
    fields = {"then": text, "csrf": text, "client_id": text, "user_name": text, "redirect_uri": "https://a.example/b"}
    return pages.grant(Client(text), text, [text, f"role:{text}:{text}"], [text], fields)


PAGES: tuple[Callable[[str], str], ...] = (
    lambda text: pages.login(text, text, text, text),
    lambda text: pages.provider_selection([(text, text)]),
    grant_page,
    lambda text: pages.display_button(text, text),
    lambda text: pages.display_token(text, text, text),
    lambda text: pages.error(text, text),
)


@pytest.mark.parametrize("page", PAGES)
@settings(max_examples=30)
@given(text=HOSTILE)
def test_text_does_not_become_markup(page: Callable[[str], str], text: str) -> None:
    assert Markup(page(f"x{text}")).tags == Markup(page("x")).tags
    tags = {tag for tag, _ in Markup(page(f"x{text}")).tags}
    assert not tags & {"script", "style", "iframe", "object", "base", "comment", "img"}


def test_text_is_shown_as_it_is() -> None:
    text = '<script>alert("1")</script>&\''
    assert f"x{text}" in Markup(grant_page(f"x{text}")).values
    assert text in Markup(pages.display_token(text, "", "")).values


@pytest.mark.parametrize("page", PAGES)
def test_page_has_neither_script_nor_style_of_its_own(page: Callable[[str], str]) -> None:
    for tag, attributes in Markup(page("x")).tags:
        assert tag not in ("script", "style")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert f'href="{STYLE_PATH}"' in page("x")


@pytest.mark.parametrize("reason", pages.REASONS)
def test_login_page_names_the_reason(reason: str) -> None:
    assert f'role="alert">{pages.REASONS[reason]}' in pages.login("/login", "/x", "c", reason)


def test_unknown_reason_is_not_shown() -> None:
    assert 'role="alert"' not in pages.login("/login", "/x", "c", "You have won")


@pytest.mark.parametrize(
    ("scope", "description", "has_warning"),
    [
        ("user:info", "Read-only access to your user information", False),
        ("user:full", "Full read/write access", True),
        ("role:view:red", 'allowed by the "view" role in project "red"', False),
        ("role:system:x:*:!", 'allowed by the "system:x" role server-wide', True),
        ("odd", "odd", False),
    ],
)
def test_scope_is_described(scope: str, description: str, has_warning: bool) -> None:
    text, warning = pages.scope_description(scope)
    assert description in text
    assert bool(warning) == has_warning


def test_grant_page_names_client_user_and_target() -> None:
    fields = {"redirect_uri": "https://a.example:8443/b?x=1"}
    page = pages.grant(Client("system:serviceaccount:red:a"), "alice", ["user:info"], [], fields)
    assert "Service account <strong>system:serviceaccount:red:a</strong>" in page
    assert "your account (alice)" in page
    assert "redirected to https://a.example:8443/b<" in page
    assert "Existing access" not in page
