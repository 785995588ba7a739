"""Arguments that name objects of the cluster: what is accepted, before any request is sent. Pure.

Each function is the `type` of an argument. It returns the text, or raises ArgumentTypeError, and argparse exits with 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from ipaddress import IPv4Address

from api.meta.names import dns_label_error, dns_subdomain_error

MAX_SHOWN = 80
"""Characters of an argument in a message."""

LABEL = "lower case letters, digits and '-'"
SUBDOMAIN = "lower case letters, digits, '-' and '.'"


def project(text: str) -> str:
    """Return the name of a project."""
    return _checked(text, dns_label_error, f"the name of a project has 1 to 63 {LABEL}")


def node(text: str) -> str:
    """Return the name of a node."""
    return _checked(text, dns_subdomain_error, f"the name of a node has 1 to 253 {SUBDOMAIN}")


def node_or_address(text: str) -> str:
    """Return the name of a node or an IPv4 address; a name of the syntax of an address is both."""
    return _checked(text, dns_subdomain_error, "NODE or an IPv4 address is accepted")


def project_or_service(text: str) -> str:
    """Return PROJECT or PROJECT/SERVICE."""
    return _checked(text, _services_error, f"PROJECT or PROJECT/SERVICE is accepted, with names of {LABEL}")


def pod(text: str) -> str:
    """Return PROJECT/POD or an address."""
    return _checked(text, _pod_error, f"PROJECT/POD or its IPv4 address is accepted, with names of {SUBDOMAIN}")


def endpoint(text: str) -> str:
    """Return what sends or receives packets: PROJECT/POD, PROJECT/SERVICE, an address, or a name without a project."""
    accepted = f"PROJECT/POD, PROJECT/SERVICE, a node or an IPv4 address is accepted, with names of {SUBDOMAIN}"
    return _checked(text, _endpoint_error, accepted)


def user(text: str) -> str:
    """Return the name of a user or a group, which is not empty: a request as nobody would be one as the caller."""
    return _checked(text, lambda found: "" if found else "empty", "a name that is not empty is accepted")


def _checked(text: str, error: Callable[[str], str], accepted: str) -> str:
    if not error(text):
        return text
    shown = repr(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}...") if text else "an empty name"
    raise argparse.ArgumentTypeError(f"found {shown}; {accepted}")


def _services_error(text: str) -> str:
    namespace, slash, name = text.partition("/")
    return dns_label_error(namespace) or (dns_label_error(name) if slash else "")


def _in_project_error(text: str) -> str:
    namespace, _, name = text.partition("/")
    return dns_label_error(namespace) or dns_subdomain_error(name)


def _pod_error(text: str) -> str:
    return _in_project_error(text) if "/" in text else _address_error(text)


def _endpoint_error(text: str) -> str:
    # The DNS name of a service may end in the dot of the root.
    return _in_project_error(text) if "/" in text else dns_subdomain_error(text.removesuffix("."))


def _address_error(text: str) -> str:
    try:
        IPv4Address(text)
    except ValueError as error:
        return str(error)
    return ""
