"""The default ClusterRoles and ClusterRoleBindings of every cluster. Pure.

Source: the bootstrap policy of Kubernetes, and of OpenShift for projects. API groups that this server does not have are
omitted, as are the roles of controllers that run in the master.
"""

from __future__ import annotations

from api.core.certificates import CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER
from api.meta.selectors import LabelSelector
from api.meta.types import ObjectMeta
from master.auth.attributes import KUBELET_CLIENT_USER, SYSTEM_CLUSTER_ADMINS
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.resources.legacy_rbac import AUTHORIZATION_GROUP
from master.resources.rbac import (
    RBAC_GROUP,
    AggregationRule,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    RoleRef,
    Subject,
)
from master.resources.security_context_constraints import SCC_PLURAL, SECURITY_GROUP

AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
"""Annotation of a default role or binding: with the value false, the master does not restore it."""

BOOTSTRAP_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}

CERTIFICATES, CERTIFICATES_ROLE = "certificates.k8s.io", "system:certificates.k8s.io:"
READ = "get list watch"
WRITE = "create delete deletecollection patch update"


def _rule(verbs: str, groups: str, resources: str, names: str = "") -> PolicyRule:
    """Return a rule. Arguments are lists separated by spaces; `core` is the group without a name."""
    return PolicyRule(
        verbs=tuple(verbs.split()),
        api_groups=tuple("" if group == "core" else group for group in groups.split()),
        resources=tuple(resources.split()),
        resource_names=tuple(names.split()),
    )


def _non_resource_rule(*paths: str) -> PolicyRule:
    """Return a rule that lets clients read paths that are no resource."""
    return PolicyRule(verbs=("get",), non_resource_urls=paths)


_EVENTS = _rule("create patch update", "core events.k8s.io", "events")
_REVIEWS = (
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
)
_HEALTH = ("/livez", "/readyz", "/healthz")


def _leader(name: str) -> tuple[PolicyRule, ...]:
    return (
        _rule("create", "coordination.k8s.io", "leases"),
        _rule("get update", "coordination.k8s.io", "leases", name),
    )


_ADMIN = (
    _rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    _rule(f"{WRITE} {READ}", RBAC_GROUP, "roles rolebindings"),
)
_STREAMS = "pods/attach pods/proxy pods/exec pods/portforward"
_WORKLOADS = (
    "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback replicasets "
    "replicasets/scale"
)
_EDIT = (
    _rule(READ, "core", f"{_STREAMS} secrets services/proxy"),
    _rule("impersonate", "core", "serviceaccounts"),
    _rule(WRITE, "core", f"pods {_STREAMS}"),
    _rule("create", "core", "pods/eviction serviceaccounts/token"),
    _rule(
        WRITE,
        "core",
        "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy "
        "persistentvolumeclaims configmaps secrets events",
    ),
    _rule(WRITE, "apps", _WORKLOADS),
    _rule(WRITE, "autoscaling", "horizontalpodautoscalers"),
    _rule(WRITE, "batch", "jobs cronjobs"),
    _rule(WRITE, "policy", "poddisruptionbudgets"),
    _rule(WRITE, "networking.k8s.io", "networkpolicies ingresses"),
    _rule(WRITE, "coordination.k8s.io", "leases"),
)
_VIEW = (
    _rule(
        READ,
        "core",
        "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status endpoints "
        "persistentvolumeclaims persistentvolumeclaims/status configmaps",
    ),
    _rule(
        READ,
        "core",
        "limitranges resourcequotas bindings events pods/status resourcequotas/status namespaces/status "
        "replicationcontrollers/status pods/log",
    ),
    _rule(READ, "core", "namespaces"),
    _rule(READ, "discovery.k8s.io", "endpointslices"),
    _rule(
        READ,
        "apps",
        "controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status "
        "deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale",
    ),
    _rule(READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    _rule(READ, "batch", "jobs cronjobs cronjobs/status jobs/status"),
    _rule(READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    _rule(READ, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
    _rule(READ, "coordination.k8s.io", "leases"),
)
_NODE = (
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
    _rule(READ, "core", "services"),
    _rule(f"create {READ}", "core", "nodes"),
    _rule("update patch", "core", "nodes nodes/status pods/status"),
    _rule("create update patch", "core", "events"),
    _rule(f"{READ} create delete", "core", "pods"),
    _rule("create", "core", "pods/eviction serviceaccounts/token"),
    _rule(READ, "core", "secrets configmaps"),
    _rule("get", "core", "persistentvolumeclaims persistentvolumes endpoints"),
    _rule(f"create {READ}", "certificates.k8s.io", "certificatesigningrequests"),
    _rule("get create update patch delete", "coordination.k8s.io", "leases"),
    _rule("get", "storage.k8s.io", "volumeattachments"),
    _rule(READ, "storage.k8s.io", "csidrivers"),
    _rule("get create update patch delete", "storage.k8s.io", "csinodes"),
    _rule(READ, "node.k8s.io", "runtimeclasses"),
)
_SCHEDULER = (
    _EVENTS,
    *_leader("kube-scheduler"),
    _rule(READ, "core", "nodes namespaces services replicationcontrollers persistentvolumeclaims persistentvolumes"),
    _rule(f"{READ} delete", "core", "pods"),
    _rule("create", "core", "pods/binding bindings"),
    _rule("patch update", "core", "pods/status"),
    _rule(READ, "apps", "replicasets statefulsets"),
    _rule(READ, "policy", "poddisruptionbudgets"),
    *_REVIEWS,
    _rule(READ, "storage.k8s.io", "csinodes csidrivers csistoragecapacities volumeattachments"),
    _rule(READ, "resource.k8s.io", "deviceclasses resourceclaims resourceslices"),
)
_VOLUME_SCHEDULER = (
    _rule(f"{READ} patch update", "core", "persistentvolumes persistentvolumeclaims"),
    _rule(READ, "storage.k8s.io", "storageclasses"),
)
_CONTROLLER_MANAGER = (
    _EVENTS,
    *_leader("kube-controller-manager"),
    _rule("create", "core", "secrets serviceaccounts serviceaccounts/token"),
    _rule("delete", "core", "secrets"),
    _rule("get", "core", "namespaces secrets serviceaccounts configmaps"),
    _rule("update", "core", "secrets serviceaccounts"),
    *_REVIEWS,
    _rule("list watch", "*", "*"),
)
_PROXIER = (
    _rule("list watch", "core", "services endpoints"),
    _rule(READ, "core", "nodes"),
    _EVENTS,
    _rule("list watch", "discovery.k8s.io", "endpointslices"),
    _rule("list watch", "networking.k8s.io", "servicecidrs"),
)
_NODES_SERVERS = (
    _rule(READ, "core", "nodes"),
    _rule("proxy", "core", "nodes"),
    _rule(
        "*",
        "core",
        "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/spec nodes/stats",
    ),
)
_PROVISIONER = (
    _rule(f"{READ} create delete", "core", "persistentvolumes"),
    _rule(f"{READ} update", "core", "persistentvolumeclaims"),
    _rule(READ, "storage.k8s.io", "storageclasses"),
    _rule("watch", "core", "events"),
    _EVENTS,
)
_PROJECTS, _USERS, _OAUTH = "project.openshift.io", "user.openshift.io", "oauth.openshift.io"
_SELF_REVIEWS = (
    _rule("create", AUTHORIZATION_GROUP, "selfsubjectrulesreviews"),
    _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
)
_BASIC_USER = (
    _rule("get", _USERS, "users", "~"),
    _rule("list", _PROJECTS, "projectrequests"),
    _rule("list watch", _PROJECTS, "projects"),
    _rule("get list watch", f"{RBAC_GROUP} {AUTHORIZATION_GROUP}", "clusterroles"),
    _rule("get list", "storage.k8s.io", "storageclasses"),
    *_SELF_REVIEWS,
)
_SUDOER = (
    _rule("impersonate", f"core {_USERS}", "users systemusers", "system:admin"),
    _rule("impersonate", f"core {_USERS}", "groups systemgroups", "system:masters"),
)
_LOCAL_REVIEWS = "localresourceaccessreviews localsubjectaccessreviews subjectrulesreviews"
_SCC_REVIEWS = "podsecuritypolicyreviews podsecuritypolicyselfsubjectreviews podsecuritypolicysubjectreviews"
_OPENSHIFT_ADMIN = (
    _rule("get delete patch update", _PROJECTS, "projects"),
    _rule(f"{WRITE} {READ}", AUTHORIZATION_GROUP, "roles rolebindings"),
    _rule("create", AUTHORIZATION_GROUP, _LOCAL_REVIEWS),
    _rule(READ, AUTHORIZATION_GROUP, "rolebindingrestrictions"),
    _rule("create", SECURITY_GROUP, _SCC_REVIEWS),
)
_CLUSTER_READER = (
    _rule(READ, "core", "nodes nodes/status persistentvolumes persistentvolumes/status podtemplates services/status"),
    _rule("get", "core", "nodes/metrics nodes/spec"),
    _rule("get create", "core", "nodes/stats"),
    _rule(READ, "core", SCC_PLURAL),
    _rule(
        READ,
        "admissionregistration.k8s.io",
        "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations "
        "validatingadmissionpolicies validatingadmissionpolicies/status validatingadmissionpolicybindings "
        "validatingwebhookconfigurations",
    ),
    _rule(READ, "apiextensions.k8s.io", "customresourcedefinitions customresourcedefinitions/status"),
    _rule(READ, "apiregistration.k8s.io", "apiservices apiservices/status"),
    _rule(READ, CERTIFICATES, "certificatesigningrequests certificatesigningrequests/status"),
    _rule(READ, "events.k8s.io", "events"),
    _rule(
        READ,
        "flowcontrol.apiserver.k8s.io",
        "flowschemas flowschemas/status prioritylevelconfigurations prioritylevelconfigurations/status",
    ),
    _rule(READ, "networking.k8s.io", "ingressclasses ipaddresses servicecidrs servicecidrs/status"),
    _rule(READ, "node.k8s.io", "runtimeclasses"),
    _rule(READ, "resource.k8s.io", "deviceclasses resourceclaims resourceclaimtemplates resourceslices"),
    _rule(READ, "scheduling.k8s.io", "priorityclasses"),
    _rule(
        READ,
        "storage.k8s.io",
        "csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses",
    ),
    _rule(READ, f"{RBAC_GROUP} {AUTHORIZATION_GROUP}", "clusterroles clusterrolebindings roles rolebindings"),
    _rule(READ, AUTHORIZATION_GROUP, "rolebindingrestrictions"),
    _rule(READ, SECURITY_GROUP, SCC_PLURAL),
    _rule(READ, _PROJECTS, "projects"),
    _rule("list", _PROJECTS, "projectrequests"),
    _rule(READ, "network.openshift.io", "clusternetworks egressnetworkpolicies hostsubnets netnamespaces"),
    _rule(READ, "podlane.io", "localvolumes localvolumes/status nodequeries nodequeries/status podaddresses"),
    _rule(READ, _USERS, "groups identities users"),
    _rule(READ, _OAUTH, "oauthclientauthorizations"),
    _rule(
        "create",
        AUTHORIZATION_GROUP,
        f"{_LOCAL_REVIEWS} resourceaccessreviews selfsubjectrulesreviews subjectaccessreviews",
    ),
    _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews subjectaccessreviews"),
    _rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", SECURITY_GROUP, _SCC_REVIEWS),
    PolicyRule(verbs=("get",), non_resource_urls=("*",)),
)
_ROUTER = (
    _rule("list watch", "core", "endpoints services"),
    _rule("list watch", "discovery.k8s.io", "endpointslices"),
    *_REVIEWS,
)
_DISCOVERY_PATHS = ("/version", "/version/", "/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*", "/")

_RULES: dict[str, tuple[PolicyRule, ...]] = {
    "cluster-admin": (
        _rule("*", "*", "*"),
        PolicyRule(verbs=("*",), non_resource_urls=("*",)),
    ),
    "system:discovery": (_non_resource_rule(*_HEALTH, *_DISCOVERY_PATHS),),
    "system:monitoring": (
        _non_resource_rule("/metrics", "/metrics/slis", *_HEALTH, *(f"{path}/*" for path in _HEALTH)),
    ),
    "system:basic-user": (
        _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        _rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    "system:public-info-viewer": (_non_resource_rule(*_HEALTH, "/version", "/version/"),),
    "system:service-account-issuer-discovery": (
        _non_resource_rule("/.well-known/openid-configuration", "/openid/v1/jwks"),
    ),
    "system:auth-delegator": _REVIEWS,
    "system:kubelet-api-admin": _NODES_SERVERS,
    "system:node": _NODE,
    "system:node-proxier": _PROXIER,
    "system:kube-scheduler": _SCHEDULER,
    "system:volume-scheduler": _VOLUME_SCHEDULER,
    "system:kube-controller-manager": _CONTROLLER_MANAGER,
    "system:persistent-volume-provisioner": _PROVISIONER,
    "basic-user": _BASIC_USER,
    "self-access-reviewer": _SELF_REVIEWS,
    "self-provisioner": (_rule("create", _PROJECTS, "projectrequests"),),
    "cluster-status": (
        _non_resource_rule(
            *("/healthz", "/healthz/", "/.well-known", "/.well-known/oauth-authorization-server"), *_DISCOVERY_PATHS
        ),
    ),
    "sudoer": _SUDOER,
    "system:scope-impersonation": (
        _rule("impersonate", "authentication.k8s.io", "userextras/scopes.authorization.openshift.io"),
    ),
    "system:oauth-token-deleter": (_rule("delete", _OAUTH, "oauthaccesstokens oauthauthorizetokens"),),
    "system:openshift:useroauthaccesstoken-manager": (_rule("get list watch delete", _OAUTH, "useroauthaccesstokens"),),
    "system:router": _ROUTER,
    "system:controller:horizontal-pod-autoscaler": (
        _rule("get list", "custom.metrics.k8s.io external.metrics.k8s.io", "*"),
    ),
}
_SIGNERS = {
    "kube-apiserver-client-approver": CLIENT_SIGNER,
    "kube-apiserver-client-kubelet-approver": KUBELET_CLIENT_SIGNER,
    "kubelet-serving-approver": KUBELET_SERVING_SIGNER,
    "legacy-unknown-approver": "kubernetes.io/legacy-unknown",
}
"""Last part of the name of a role → the signer whose requests it may approve."""

_REQUESTS = "certificatesigningrequests"
_RULES |= {
    # What a machine reads before it joins: whether its name is taken, and which networks its own must not overlap.
    "podlane:joining-nodes": (
        _rule("get", "core", "nodes"),
        _rule("get", "network.openshift.io", "clusternetworks", "default"),
    ),
    "system:node-bootstrapper": (_rule(f"create {READ}", CERTIFICATES, _REQUESTS),),
    **{
        f"{CERTIFICATES_ROLE}{_REQUESTS}:{name}": (_rule("create", CERTIFICATES, f"{_REQUESTS}/{name}"),)
        for name in ("nodeclient", "selfnodeclient")
    },
    **{
        f"{CERTIFICATES_ROLE}{name}": (_rule("approve", CERTIFICATES, "signers", signer),)
        for name, signer in _SIGNERS.items()
    },
}
_SCC_ROLE = "system:openshift:scc:"
_RULES |= {
    f"{_SCC_ROLE}{scc.metadata.name}": (_rule("use", SECURITY_GROUP, SCC_PLURAL, scc.metadata.name),)
    for scc in BOOTSTRAP_SCCS
}
_AGGREGATING_ROLES: dict[str, tuple[str, tuple[PolicyRule, ...]]] = {
    "system:aggregate-to-admin": ("admin", _ADMIN),
    "system:aggregate-to-edit": ("edit", _EDIT),
    "system:aggregate-to-view": ("view", _VIEW),
    "system:aggregated-metrics-reader": ("view", (_rule(READ, "metrics.k8s.io", "pods nodes"),)),
    "system:openshift:aggregate-to-admin": ("admin", _OPENSHIFT_ADMIN),
    "system:openshift:aggregate-to-edit": ("edit", (_rule("get", _PROJECTS, "projects"),)),
    "system:openshift:aggregate-to-view": ("view", (_rule("get", _PROJECTS, "projects"),)),
    "system:openshift:aggregate-to-cluster-reader": ("cluster-reader", _CLUSTER_READER),
}
"""Role → the aggregated role that gets its rules, and these rules."""

_AGGREGATED_ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("", ()),
    "edit": ("admin", ()),
    "view": ("edit", ()),
    "cluster-reader": ("", ("view",)),
}
"""Aggregated role → the aggregated role that gets its rules in turn, and those whose parts it gets itself.

view is contained in edit, and edit in admin.
"""

SELF_PROVISIONERS = "self-provisioners"
"""The binding whose subjects the setting selfProvisioning decides."""

_BOOTSTRAPPERS = "Group system:bootstrappers"
_AUTHENTICATED, _UNAUTHENTICATED = "Group system:authenticated", "Group system:unauthenticated"
_OAUTH_AUTHENTICATED = "Group system:authenticated:oauth"
_BINDINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cluster-admin": ("cluster-admin", ("Group system:masters",)),
    "cluster-admins": ("cluster-admin", (f"Group {SYSTEM_CLUSTER_ADMINS}", "User system:admin")),
    "cluster-readers": ("cluster-reader", ("Group system:cluster-readers",)),
    "cluster-status-binding": ("cluster-status", (_AUTHENTICATED,)),
    "system:discovery": ("system:discovery", (_AUTHENTICATED,)),
    "system:monitoring": ("system:monitoring", ("Group system:monitoring",)),
    "system:basic-user": ("system:basic-user", (_AUTHENTICATED,)),
    "system:public-info-viewer": ("system:public-info-viewer", (_AUTHENTICATED, _UNAUTHENTICATED)),
    "system:service-account-issuer-discovery": (
        "system:service-account-issuer-discovery",
        (_AUTHENTICATED, _UNAUTHENTICATED),
    ),
    "system:node": ("system:node", ()),
    "podlane:servers-of-nodes": ("system:kubelet-api-admin", (f"User {KUBELET_CLIENT_USER}",)),
    "system:node-proxier": ("system:node-proxier", ("User system:kube-proxy",)),
    "system:kube-scheduler": ("system:kube-scheduler", ("User system:kube-scheduler",)),
    "system:volume-scheduler": ("system:volume-scheduler", ("User system:kube-scheduler",)),
    "system:kube-controller-manager": ("system:kube-controller-manager", ("User system:kube-controller-manager",)),
    "podlane:node-bootstrappers": ("system:node-bootstrapper", (_BOOTSTRAPPERS, "Group system:nodes")),
    "podlane:joining-nodes": ("podlane:joining-nodes", (_BOOTSTRAPPERS,)),
    "podlane:first-certificates": (f"{CERTIFICATES_ROLE}{_REQUESTS}:nodeclient", (_BOOTSTRAPPERS,)),
    "podlane:renewed-certificates": (f"{CERTIFICATES_ROLE}{_REQUESTS}:selfnodeclient", ("Group system:nodes",)),
    # Metrics servers ask whether the autoscaler of the master, which has this name, may read metrics.
    "system:controller:horizontal-pod-autoscaler": (
        "system:controller:horizontal-pod-autoscaler",
        ("User system:serviceaccount:kube-system:horizontal-pod-autoscaler",),
    ),
    "basic-users": ("basic-user", (_AUTHENTICATED,)),
    "self-access-reviewers": ("self-access-reviewer", (_AUTHENTICATED,)),
    "system:scope-impersonation": ("system:scope-impersonation", (_AUTHENTICATED,)),
    "system:oauth-token-deleters": ("system:oauth-token-deleter", (_AUTHENTICATED,)),
    "system:openshift:useroauthaccesstoken-manager": (
        "system:openshift:useroauthaccesstoken-manager",
        (_OAUTH_AUTHENTICATED,),
    ),
    f"{_SCC_ROLE}restricted-v2": (f"{_SCC_ROLE}restricted-v2", (_AUTHENTICATED,)),
    SELF_PROVISIONERS: ("self-provisioner", (_OAUTH_AUTHENTICATED,)),
}
"""Binding → its role and its subjects."""


def _aggregate(name: str) -> dict[str, str]:
    """Return the label that adds the rules of a role to the aggregated role of a name; nothing without a name."""
    return {f"{RBAC_GROUP}/aggregate-to-{name}": "true"} if name else {}


def _meta(name: str, labels: dict[str, str]) -> ObjectMeta:
    return ObjectMeta(name=name, labels={**BOOTSTRAP_LABELS, **labels}, annotations={AUTO_UPDATE: "true"})


def _aggregated_role(name: str, contained_in: str, others: tuple[str, ...]) -> ClusterRole:
    selectors = tuple(LabelSelector(match_labels=_aggregate(each)) for each in (name, *others))
    rule = AggregationRule(cluster_role_selectors=selectors)
    return ClusterRole(metadata=_meta(name, _aggregate(contained_in)), aggregation_rule=rule)


def _binding(name: str, role: str, subjects: tuple[str, ...]) -> ClusterRoleBinding:
    kinds_and_names = (subject.split(" ", 1) for subject in subjects)
    return ClusterRoleBinding(
        metadata=_meta(name, {}),
        subjects=tuple(
            Subject(kind=kind, api_group=RBAC_GROUP, name=subject_name) for kind, subject_name in kinds_and_names
        ),
        role_ref=RoleRef(api_group=RBAC_GROUP, kind=ClusterRole.KIND, name=role),
    )


ROLES = (
    *(ClusterRole(metadata=_meta(name, {}), rules=rules) for name, rules in _RULES.items()),
    *(_aggregated_role(name, *aggregation) for name, aggregation in _AGGREGATED_ROLES.items()),
    *(
        ClusterRole(metadata=_meta(name, _aggregate(contained_in)), rules=rules)
        for name, (contained_in, rules) in _AGGREGATING_ROLES.items()
    ),
)
BINDINGS = tuple(_binding(name, role, subjects) for name, (role, subjects) in _BINDINGS.items())
