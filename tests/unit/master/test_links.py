"""Links inside of pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.server.proxy.forwarding import MAX_PAGE_BYTES, rewrite_links


def moved(url: str) -> str:
    return f"/p{url}" if url.startswith("/") else url


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ('<a href="/rewriteme">test</a>', '<a href="/p/rewriteme">test</a>'),
        ("<A class=x HREF = '/x'>", "<A class=x HREF = '/p/x'>"),
        ('<img alt="/x" src="/x" /><img srcset="/x">', '<img alt="/x" src="/p/x" /><img srcset="/x">'),
        ('<a href="there"><a href="?a=1">', '<a href="there"><a href="?a=1">'),
        ('<div href="/x">/x</div> <p>href="/x"', '<div href="/x">/x</div> <p>href="/x"'),
        ('<a href="/x?a=1&amp;b=2">', '<a href="/p/x?a=1&amp;b=2">'),
        ('<a title="> href=" href="/x">', '<a title="> href=" href="/p/x">'),
        ('<!-- <a href="/x"> --><a href="/x">', '<!-- <a href="/x"> --><a href="/p/x">'),
        ('<script src="/s">\'<a href="/x">\'</script>', '<script src="/p/s">\'<a href="/x">\'</script>'),
        ("<a href=/x", "<a href=/x"),
    ],
)
def test_links(page: str, seen: str) -> None:
    assert rewrite_links(page.encode(), moved).decode() == seen


@pytest.mark.parametrize(
    "part", ["<!--", "<script", "<script>", "<a '", "<a \"'", "<a ", "<a href='/x", "</script ", '<a""\'']
)
def test_pages_that_would_take_for_ever(part: str) -> None:
    page = part.encode() * (MAX_PAGE_BYTES // len(part))
    assert rewrite_links(page, lambda url: url) == page


@given(st.binary(max_size=200))
def test_what_has_no_links_stays_byte_for_byte(page: bytes) -> None:
    assert rewrite_links(page, lambda url: url) == page


@given(st.text(alphabet="<a href='/x\">!-script/", max_size=80))
def test_no_page_is_too_strange(page: str) -> None:
    assert rewrite_links(page.encode(), lambda url: url).decode() == page
