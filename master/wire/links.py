"""Links inside of pages, seen through a proxy. Pure.

Source: the proxy of kube-apiserver, which changes the values of those attributes of HTML that are URLs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

LARGEST_PAGE = 512 << 10
"""Bytes of a page whose links are changed; a larger one is passed on as it is."""

_BY_ATTRIBUTE: Mapping[str, str] = {
    "action": "form",
    "background": "body",
    "cite": "blockquote del ins q",
    "classid": "object",
    "codebase": "applet object",
    "data": "object",
    "formaction": "button input",
    "href": "a area base link",
    "icon": "command",
    "longdesc": "frame iframe img",
    "manifest": "html",
    "poster": "video",
    "profile": "head",
    "src": "audio embed frame iframe img input script source video",
    "usemap": "img input object",
}
"""Attribute → the tags in which it is a URL."""

# Whatever is begun is taken to the end of the page if it is never ended: so the time grows as the page does.
_TAG = re.compile(rb"""<([a-zA-Z][a-zA-Z0-9]*+)((?:[^<>"']|"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))*+)(>?)""")
_ATTRIBUTE = re.compile(rb"""(\s)([a-zA-Z]+)(\s*=\s*)("[^"]*"|'[^']*')""")
_VERBATIM = re.compile(
    rb"<!--(?:.*?-->|.*\Z)|<(script|style)\b[^>]*+(?:>|\Z)(?:.*?</\1\s*>|.*\Z)", re.IGNORECASE | re.DOTALL
)


def relinked(page: bytes, change: Callable[[str], str]) -> bytes:
    """The page with every URL in its tags as `change` has it; what stands in comments, scripts and styles stays."""
    parts, done = [], 0
    for verbatim in _VERBATIM.finditer(page):
        parts.append(_tags(page[done : verbatim.start()], change))
        text = verbatim[0]
        opening = text.find(b">") + 1 if verbatim[1] else 0
        parts += [_tags(text[:opening], change), text[opening:]]
        done = verbatim.end()
    return b"".join([*parts, _tags(page[done:], change)])


def _tags(text: bytes, change: Callable[[str], str]) -> bytes:
    def attribute(tag: str, found: re.Match[bytes]) -> bytes:
        name = found[2].decode("ascii").lower()
        if tag not in _BY_ATTRIBUTE.get(name, "").split():
            return found[0]
        quote, value = found[4][:1], html.unescape(found[4][1:-1].decode("utf-8", "surrogateescape"))
        changed = change(value)
        if changed == value:
            return found[0]
        written = html.escape(changed).encode("utf-8", "surrogateescape")
        return b"".join((found[1], found[2], found[3], quote, written, quote))

    def whole(found: re.Match[bytes]) -> bytes:
        if not found[3]:
            return found[0]
        tag = found[1].decode("ascii").lower()
        return b"<" + found[1] + _ATTRIBUTE.sub(lambda one: attribute(tag, one), found[2]) + b">"

    return _TAG.sub(whole, text)
