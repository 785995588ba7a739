"""What is asked of a pod's containers: checked, and as a node is asked for it. Pure; raises `answers.Failure`.

Source: PodLogOptions, PodExecOptions, PodAttachOptions and PodPortForwardOptions of Kubernetes, and the parameters of
the kubelet's server.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from multidict import MultiMapping

from api.core.pod import Pod
from api.meta.schema import FORBIDDEN, INVALID, NOT_SUPPORTED, FieldError
from api.meta.types import StatusCause, StatusDetails
from master.wire import answers

LARGEST = 1 << 63

STREAMS = ("All", "Stderr", "Stdout")

FLAGS = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"))
"""(name for the master, name for a node)"""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`wishes` are the parameters for the node."""

    container: str
    wishes: tuple[tuple[str, str], ...]
    insecure: bool


def log_options(query: MultiMapping[str], pod: str) -> LogOptions:
    """The options of GET pods/NAME/log."""
    numbers = {name: _number(query, name) for name in ("sinceSeconds", "tailLines", "limitBytes")}
    since = _time(query, "sinceTime")
    problems = tuple(_problems(query, numbers, since))
    if problems:
        raise answers.invalid_as("", "PodLogOptions", pod, problems)
    flags = [(name, "true") for name in ("follow", "previous", "timestamps") if flag(query, name)]
    asked = [(name, str(found)) for name, found in numbers.items() if found is not None]
    times = [("sinceTime", since)] if since else []
    stream = query.get("stream", "")
    streams = [("stream", stream)] if stream not in ("", "All") else []
    insecure = flag(query, "insecureSkipTLSVerifyBackend")
    return LogOptions(query.get("container", ""), (*flags, *asked, *times, *streams), insecure)


def _problems(query: MultiMapping[str], numbers: dict[str, int | None], since: str) -> Iterator[FieldError]:
    tail, most, seconds = numbers["tailLines"], numbers["limitBytes"], numbers["sinceSeconds"]
    if tail is not None and tail < 0:
        yield FieldError("tailLines", str(tail), "must be greater than or equal to 0", INVALID)
    if most is not None and most < 1:
        yield FieldError("limitBytes", str(most), "must be greater than 0", INVALID)
    if seconds is not None and since:
        yield FieldError("", "given", "at most one of `sinceTime` or `sinceSeconds` may be specified", FORBIDDEN)
    elif seconds is not None and seconds < 1:
        yield FieldError("sinceSeconds", str(seconds), "must be greater than 0", INVALID)
    stream = query.get("stream", "")
    if stream and stream not in STREAMS:
        accepted = ", ".join(f'"{one}"' for one in STREAMS)
        yield FieldError("stream", f'"{stream}"', f"supported values: {accepted}", NOT_SUPPORTED)
    elif stream not in ("", "All") and tail is not None:
        why = "`tailLines` and specific `stream` are mutually exclusive for now"
        yield FieldError("", "given", why, FORBIDDEN)


def flag(query: MultiMapping[str], name: str) -> bool:
    """Whether something is asked for: by any value but 0 and false, also by none."""
    return name in query and query[name].lower() not in ("0", "false")


def _number(query: MultiMapping[str], name: str) -> int | None:
    if name not in query:
        return None
    return _integer(query[name], LARGEST)


def _integer(text: str, bound: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        raise answers.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(digits.lstrip("0")) > 19 or not -bound <= (found := int(text)) < bound:
        raise answers.bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return found


def _time(query: MultiMapping[str], name: str) -> str:
    """In whole seconds, as the reference passes it on."""
    text = query.get(name, "")
    if not text:
        return ""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text:
        form = "2006-01-02T15:04:05Z07:00"
        raise answers.bad_request(f'parsing time "{text}" as "{form}": cannot parse "{text}" as "2006"')
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")


# --- what a node is asked ---------------------------------------------------------------------------------------------


def log_path(pod: Pod, container: str, options: LogOptions) -> str:
    """Where a node has the log of a container."""
    return _path("containerLogs", pod, container, list(options.wishes))


def stream_path(what: str, pod: Pod, query: MultiMapping[str]) -> str:
    """Where a node lets somebody into a pod; `what` is exec, attach or portforward."""
    if what == "portforward":
        ports = [str(_integer(port, 1 << 31)) for text in query.getall("ports", []) for port in text.split(",")]
        return _path("portForward", pod, "", [("port", ",".join(ports))] if ports else [])
    inside = container(pod, query.get("container", ""))
    asked = [(theirs, "1") for ours, theirs in FLAGS if flag(query, ours)]
    command = [("command", word) for word in query.getall("command", [])] if what == "exec" else []
    return _path(what, pod, inside, asked + command)


def _path(what: str, pod: Pod, container: str, parameters: list[tuple[str, str]]) -> str:
    parts = [what, pod.metadata.namespace, pod.metadata.name, *([container] if container else [])]
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(parameters)}" if parameters else path


def container(pod: Pod, name: str) -> str:
    """The container that is meant: the one that is named, or the only one."""
    spec = pod.spec
    known = [one.name for one in (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)]
    if name:
        if name not in known:
            raise answers.bad_request(f"container {name} is not valid for pod {pod.metadata.name}")
        return name
    if len(spec.containers) != 1:
        listed = " ".join(known)
        message = f"a container name must be specified for pod {pod.metadata.name}, choose one of: [{listed}]"
        raise answers.bad_request(message)
    return spec.containers[0].name


def node_of(pod: Pod) -> str:
    """The node that has a pod."""
    if not pod.spec.node_name:
        raise answers.bad_request(f"pod {pod.metadata.name} does not have a host assigned")
    return pod.spec.node_name


# --- what a node answers ----------------------------------------------------------------------------------------------

_REFUSALS = {
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}
_ITS_OWN_WORDS = {403: "Forbidden", 415: "UnsupportedMediaType", 406: "NotAcceptable"}


def refused_log(code: int, text: str, pod: str) -> answers.Failure:
    """What a node's refusal of a log is to the client."""
    if code == 500:
        return internal(text)
    if code == 400:
        return answers.bad_request(text)
    reason, message = _REFUSALS.get(code, ("", ""))
    if code in _ITS_OWN_WORDS:
        reason, message = _ITS_OWN_WORDS[code], text
    elif not message and code > 500:
        reason = "InternalError"
        message = f'an error on the server ("{text}") has prevented the request from succeeding'
    elif not message:
        message = f"the server responded with the status code {code} but did not return more information"
    details = StatusDetails(name=pod, kind="pods/log")
    return answers.failure(code, reason, f"{message} ( pods/log {pod})", details)


def internal(text: str) -> answers.Failure:
    """500: something behind the master went wrong."""
    details = StatusDetails(causes=(StatusCause(message=text),))
    return answers.failure(500, "InternalError", f"Internal error occurred: {text}", details)
