"""Ingress and IngressClass. Stored and served; no controller acts on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from msgspec.structs import replace

from api.core.services import LoadBalancerStatus
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted, unsupported_values
from api.meta.types import Object, Value
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME, none_if_empty
from master.resources.resource import Column, Resource
from master.resources.validation import immutable, required

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
EXACT_PATH, PREFIX_PATH, IMPLEMENTATION_SPECIFIC = PATH_TYPES = ("Exact", "Prefix", "ImplementationSpecific")
CLUSTER_SCOPE, NAMESPACE_SCOPE = SCOPES = ("Cluster", "Namespace")
MAX_HOSTS_SHOWN, MAX_CONTROLLER_LENGTH = 3, 250
_FORBIDDEN_IN_PATH, _FORBIDDEN_AT_END = ("//", "/./", "/../", "%2f", "%2F"), ("/..", "/.")

INGRESS_WARNING = "no controller of this master acts on an Ingress: one that runs in the cluster has to"


class ServiceBackendPort(Value, frozen=True):
    """A port of a service, by its name or its number."""

    name: str = ""
    number: Int32 = 0


class IngressServiceBackend(Value, frozen=True):
    """A service of the same project."""

    name: str = ""
    port: ServiceBackendPort = ServiceBackendPort()


class TypedLocalObjectReference(Value, frozen=True):
    """A reference to an object of any kind in the same project."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""


class IngressBackend(Value, frozen=True):
    """A service or another object; exactly one of the two."""

    service: IngressServiceBackend | None = None
    resource: TypedLocalObjectReference | None = None


class HTTPIngressPath(Value, frozen=True):
    """A path and its backend. `pathType` is Exact, Prefix or ImplementationSpecific."""

    path: str = ""
    path_type: str | None = None
    backend: IngressBackend = IngressBackend()


class HTTPIngressRuleValue(Value, frozen=True):
    """The backend of each path."""

    paths: tuple[HTTPIngressPath, ...] = ()


class IngressRule(Value, frozen=True):
    """The backends of one host.

    A host that begins with `*.` stands for any name below the rest. A rule without a host is for all other hosts.
    """

    host: str = ""
    http: HTTPIngressRuleValue | None = None


class IngressTLS(Value, frozen=True):
    """The secret with the certificate of these hosts."""

    hosts: tuple[str, ...] = ()
    secret_name: str = ""


class IngressSpec(Value, frozen=True):
    """The rules of an ingress. `defaultBackend` serves what no rule matches."""

    ingress_class_name: str | None = None
    default_backend: IngressBackend | None = None
    tls: tuple[IngressTLS, ...] = ()
    rules: tuple[IngressRule, ...] = ()


class IngressStatus(Value, frozen=True, omit_defaults=False):
    """The addresses at which the ingress can be reached."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Ingress(Object, frozen=True):
    """Exposes services of a project by host names and paths."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "Ingress"
    PLURAL = "ingresses"
    NAMESPACED = True

    spec: IngressSpec = IngressSpec()
    status: IngressStatus = IngressStatus()


class IngressClassParametersReference(Value, frozen=True):
    """A reference to parameters of the controller; `scope` is Cluster or Namespace."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""
    scope: str | None = None
    namespace: str | None = None


class IngressClassSpec(Value, frozen=True):
    """The controller of a class. `controller` is its name."""

    controller: str = ""
    parameters: IngressClassParametersReference | None = None


class IngressClass(Object, frozen=True):
    """A class of ingresses, with its controller."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "IngressClass"
    PLURAL = "ingressclasses"
    NAMESPACED = False

    spec: IngressClassSpec = IngressClassSpec()


# --- Ingress ----------------------------------------------------------------------------------------------------------


def _validate_ingress(ingress: Ingress) -> Iterator[FieldError]:
    spec = ingress.spec
    if not spec.rules and spec.default_backend is None:
        yield FieldError("spec", "{}", "either `defaultBackend` or `rules` must be specified")
    if spec.default_backend is not None:
        yield from _validate_backend("spec.defaultBackend", spec.default_backend)
    if spec.ingress_class_name is not None:
        yield from required("spec.ingressClassName", spec.ingress_class_name, names.dns_subdomain_error)
    for number, tls in enumerate(spec.tls):
        for index, host in enumerate(tls.hosts):
            yield from _validate_host(f"spec.tls[{number}].hosts[{index}]", host)
        if tls.secret_name and names.dns_subdomain_error(tls.secret_name):
            yield FieldError(
                f"spec.tls[{number}].secretName", quoted(tls.secret_name), names.dns_subdomain_error(tls.secret_name)
            )
    for number, rule in enumerate(spec.rules):
        if rule.host:
            yield from _validate_host(f"spec.rules[{number}].host", rule.host)
        yield from _validate_paths(f"spec.rules[{number}].http.paths", rule.http)


def _validate_host(path: str, host: str) -> Iterator[FieldError]:
    try:
        ip_address(host)
    except ValueError:
        error = names.dns_subdomain_error(host.removeprefix("*."))
    else:
        error = "must be a DNS name, not an IP address"
    if error:
        yield FieldError(path, quoted(host), error)


def _validate_paths(field_path: str, rule: HTTPIngressRuleValue | None) -> Iterator[FieldError]:
    if rule is None:
        return
    if not rule.paths:
        yield FieldError(field_path, "[]", "at least one path is required", MISSING)
    for number, http_path in enumerate(rule.paths):
        path = f"{field_path}[{number}]"
        if http_path.path_type is None:
            yield FieldError(f"{path}.pathType", "null", "pathType must be specified", MISSING)
        elif http_path.path_type not in PATH_TYPES:
            accepted = f"{', '.join(PATH_TYPES)} are accepted"
            yield FieldError(f"{path}.pathType", quoted(http_path.path_type), accepted, NOT_SUPPORTED)
        yield from _validate_path(f"{path}.path", http_path.path, http_path.path_type)
        yield from _validate_backend(f"{path}.backend", http_path.backend)


def _validate_path(field_path: str, path: str, path_type: str | None) -> Iterator[FieldError]:
    if path_type == IMPLEMENTATION_SPECIFIC and not path:
        return
    if not path.startswith("/"):
        yield FieldError(field_path, quoted(path), "must be an absolute path")
    elif path_type != IMPLEMENTATION_SPECIFIC:
        bad = [part for part in _FORBIDDEN_IN_PATH if part in path] + [
            part for part in _FORBIDDEN_AT_END if path.endswith(part)
        ]
        if bad:
            yield FieldError(field_path, quoted(path), f"must not contain {bad[0]!r}")


def _validate_backend(path: str, backend: IngressBackend) -> Iterator[FieldError]:
    service, resource = backend.service, backend.resource
    if service is not None and resource is not None:
        yield FieldError(path, "given", "cannot set both resource and service backends")
    elif resource is not None:
        for field, text in (("kind", resource.kind), ("name", resource.name)):
            if not text:
                yield FieldError(f"{path}.resource.{field}", '""', f"{field} is required", MISSING)
    elif service is None:
        yield FieldError(path, "{}", "a service or a resource is required", MISSING)
    else:
        yield from required(f"{path}.service.name", service.name, names.dns_label_error)
        yield from _validate_port(f"{path}.service.port", service.port)


def _validate_port(path: str, port: ServiceBackendPort) -> Iterator[FieldError]:
    if port.name and port.number:
        yield FieldError(path, quoted(port.name), "cannot set both port name & port number")
    elif port.name:
        yield from required(f"{path}.name", port.name, names.port_name_error)
    elif not port.number:
        yield FieldError(path, "{}", "port name or number is required", MISSING)
    elif not 1 <= port.number <= 65535:
        yield FieldError(f"{path}.number", quoted(port.number), "must be between 1 and 65535, inclusive")


def _validate_single_class(ingress: Ingress) -> Iterator[FieldError]:
    if ingress.spec.ingress_class_name is not None and CLASS_ANNOTATION in ingress.metadata.annotations:
        reason = "can not be set when the class field is also set"
        path = f"metadata.annotations[{CLASS_ANNOTATION}]"
        yield FieldError(path, quoted(ingress.metadata.annotations[CLASS_ANNOTATION]), reason)


def _hosts_text(rules: tuple[IngressRule, ...]) -> str:
    hosts = [rule.host for rule in rules[:MAX_HOSTS_SHOWN] if rule.host]
    more = f" + {len(rules) - MAX_HOSTS_SHOWN} more..." if len(rules) > MAX_HOSTS_SHOWN else ""
    return ",".join(hosts) + more if hosts else "*"


def _addresses_text(ingress: Ingress) -> str:
    return ",".join(sorted({address.ip or address.hostname for address in ingress.status.load_balancer.ingress} - {""}))


def _validate_ingress_create(ingress: Ingress) -> Iterator[FieldError]:
    yield from _validate_single_class(ingress)
    yield from _validate_ingress(ingress)


# --- IngressClass -----------------------------------------------------------------------------------------------------


def _controller_problem(text: str) -> str:
    domain, slash, rest = text.partition("/")
    if len(text) > MAX_CONTROLLER_LENGTH or not slash or not rest or names.dns_subdomain_error(domain):
        return (
            'a domain and a path, such as "example.org/ingress", are accepted, '
            f"up to {MAX_CONTROLLER_LENGTH} characters"
        )
    return ""


def _default_ingress_class(ingress_class: IngressClass) -> IngressClass:
    parameters = ingress_class.spec.parameters
    if parameters is None:
        return ingress_class
    scoped = replace(parameters, scope=parameters.scope or CLUSTER_SCOPE)
    return replace(ingress_class, spec=replace(ingress_class.spec, parameters=scoped))


def _validate_ingress_class(ingress_class: IngressClass) -> Iterator[FieldError]:
    yield from required("spec.controller", ingress_class.spec.controller, _controller_problem)
    parameters, path = ingress_class.spec.parameters, "spec.parameters"
    if parameters is None:
        return
    for field, text in (("kind", parameters.kind), ("name", parameters.name)):
        if not text:
            yield FieldError(f"{path}.{field}", '""', f"{field} is required", MISSING)
    yield from unsupported_values((f"{path}.scope", parameters.scope or "", SCOPES))
    if parameters.scope == NAMESPACE_SCOPE:
        yield from required(f"{path}.namespace", parameters.namespace or "", names.dns_label_error)
    elif parameters.namespace is not None:
        reason = "`parameters.scope` is set to 'Cluster'"
        yield FieldError(f"{path}.namespace", quoted(parameters.namespace), reason, FORBIDDEN)


def _parameters_text(ingress_class: IngressClass) -> str:
    parameters = ingress_class.spec.parameters
    if parameters is None:
        return "<none>"
    return f"{parameters.kind}{'.' + parameters.api_group if parameters.api_group else ''}/{parameters.name}"


INGRESSES = Resource(
    type=Ingress,
    short_names=("ing",),
    columns=(
        NAME,
        Column("Class", "Its class.", lambda ingress, _: none_if_empty(ingress.spec.ingress_class_name or "")),
        Column("Hosts", "Host names of the rules.", lambda ingress, _: _hosts_text(ingress.spec.rules)),
        Column("Address", "Where the outside finds it.", lambda ingress, _: _addresses_text(ingress)),
        Column("Ports", "The ports that are open.", lambda ingress, _: "80, 443" if ingress.spec.tls else "80"),
        AGE,
    ),
    spec=lambda ingress: ingress.spec,
    rules=KindRules(validate=_validate_ingress_create, warnings=lambda ingress: iter((INGRESS_WARNING,))),
)
INGRESS_CLASSES = Resource(
    type=IngressClass,
    columns=(
        NAME,
        Column(
            "Controller",
            "Controller of the ingresses of the class.",
            lambda ingress_class, _: ingress_class.spec.controller,
        ),
        Column("Parameters", "More for the controller.", lambda ingress_class, _: _parameters_text(ingress_class)),
        AGE,
    ),
    spec=lambda ingress_class: ingress_class.spec,
    rules=KindRules(
        _default_ingress_class,
        _validate_ingress_class,
        lambda old, new: immutable(("spec.controller", old.spec.controller, new.spec.controller)),
    ),
    acted_on_by=(
        "an Ingress without a class gets the class that is marked as default; otherwise stored for an ingress"
        " controller in the cluster"
    ),
)
