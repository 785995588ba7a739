"""The SCCs that belong to every cluster. Pure.

Source: the SCCs of OpenShift. Those that require a user namespace for each pod are missing, because Docker supports a
user namespace for all containers or for none.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.auth.attributes import SYSTEM_CLUSTER_ADMINS, SYSTEM_MASTERS, SYSTEM_NODES
from master.resources.security_context_constraints import (
    ANY,
    MUST_RUN_AS,
    MUST_RUN_AS_NON_ROOT,
    MUST_RUN_AS_RANGE,
    RUN_AS_ANY,
    GroupStrategy,
    RunAsUserStrategy,
    SecurityContextConstraints,
    SELinuxContextStrategy,
)

DESCRIPTION_ANNOTATION = "kubernetes.io/description"

_VOLUMES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
_OLD_DROPS = ("KILL", "MKNOD", "SETUID", "SETGID")
_GROUPS_MUST, _GROUPS_ANY = GroupStrategy(type=MUST_RUN_AS), GroupStrategy(type=RUN_AS_ANY)


def _scc(name: str, description: str, user: str, **fields: Any) -> SecurityContextConstraints:
    return SecurityContextConstraints(
        metadata=ObjectMeta(name=name, annotations={DESCRIPTION_ANNOTATION: description}),
        run_as_user=RunAsUserStrategy(type=user),
        **{
            "se_linux_context": SELinuxContextStrategy(type=MUST_RUN_AS),
            "fs_group": _GROUPS_ANY,
            "supplemental_groups": _GROUPS_ANY,
            "volumes": _VOLUMES,
            "allow_privilege_escalation": True,
            "user_namespace_level": "AllowHostLevel",
            **fields,
        },
    )


def _second_version(old: SecurityContextConstraints, description: str) -> SecurityContextConstraints:
    """Return an SCC without capabilities and privilege escalation, and with the seccomp profile of the runtime."""
    return replace(
        old,
        metadata=ObjectMeta(name=f"{old.metadata.name}-v2", annotations={DESCRIPTION_ANNOTATION: description}),
        allow_privilege_escalation=False,
        allowed_capabilities=("NET_BIND_SERVICE",),
        required_drop_capabilities=("ALL",),
        seccomp_profiles=("runtime/default",),
    )


_ANYUID = _scc(
    "anyuid",
    "as restricted, but with any user ID and any group",
    RUN_AS_ANY,
    priority=10,
    required_drop_capabilities=("MKNOD",),
    groups=(SYSTEM_CLUSTER_ADMINS,),
)
_RESTRICTED = _scc(
    "restricted",
    "denies all features of the host; pods run with the user IDs and the SELinux level of their namespace",
    MUST_RUN_AS_RANGE,
    fs_group=_GROUPS_MUST,
    required_drop_capabilities=_OLD_DROPS,
)
_NON_ROOT = _scc(
    "nonroot",
    "as restricted, but with any user ID except 0",
    MUST_RUN_AS_NON_ROOT,
    required_drop_capabilities=_OLD_DROPS,
)
_HOST_NETWORK = _scc(
    "hostnetwork",
    "as restricted, with the network and the ports of the host",
    MUST_RUN_AS_RANGE,
    allow_host_network=True,
    allow_host_ports=True,
    fs_group=_GROUPS_MUST,
    supplemental_groups=_GROUPS_MUST,
    required_drop_capabilities=_OLD_DROPS,
)
_HOST_MOUNT = _scc(
    "hostmount-anyuid",
    "as anyuid, with directories of the host and NFS; whoever has it can read and change the host",
    RUN_AS_ANY,
    allow_host_dir_volume_plugin=True,
    volumes=tuple(sorted((*_VOLUMES, "hostPath", "nfs"))),
    required_drop_capabilities=("MKNOD",),
    users=("system:serviceaccount:openshift-infra:pv-recycler-controller",),
)
_HOST_ACCESS = _scc(
    "hostaccess",
    "all namespaces, ports and directories of the host, with the user IDs of the pod's namespace",
    MUST_RUN_AS_RANGE,
    allow_host_network=True,
    allow_host_ports=True,
    allow_host_pid=True,
    allow_host_ipc=True,
    allow_host_dir_volume_plugin=True,
    fs_group=_GROUPS_MUST,
    volumes=tuple(sorted((*_VOLUMES, "hostPath"))),
    required_drop_capabilities=_OLD_DROPS,
)
_PRIVILEGED = _scc(
    "privileged",
    "everything; whoever has it owns the host",
    RUN_AS_ANY,
    allow_privileged_container=True,
    allow_host_network=True,
    allow_host_ports=True,
    allow_host_pid=True,
    allow_host_ipc=True,
    allow_host_dir_volume_plugin=True,
    allowed_capabilities=(ANY,),
    se_linux_context=SELinuxContextStrategy(type=RUN_AS_ANY),
    seccomp_profiles=(ANY,),
    volumes=(ANY,),
    allowed_unsafe_sysctls=(ANY,),
    users=("system:admin", "system:serviceaccount:openshift-infra:build-controller"),
    groups=(SYSTEM_CLUSTER_ADMINS, SYSTEM_NODES, SYSTEM_MASTERS),
)

BOOTSTRAP_SCCS = (
    _ANYUID,
    _RESTRICTED,
    _second_version(_RESTRICTED, "as restricted, without capabilities and privilege escalation, and with seccomp"),
    _NON_ROOT,
    _second_version(_NON_ROOT, "as nonroot, without capabilities and privilege escalation, and with seccomp"),
    _HOST_MOUNT,
    replace(
        _HOST_MOUNT,
        metadata=ObjectMeta(
            name="hostmount-anyuid-v2",
            annotations={DESCRIPTION_ANNOTATION: "as hostmount-anyuid, with any SELinux label"},
        ),
        se_linux_context=SELinuxContextStrategy(type=RUN_AS_ANY),
        users=(),
    ),
    _HOST_NETWORK,
    _second_version(_HOST_NETWORK, "as hostnetwork, without capabilities and privilege escalation, and with seccomp"),
    _HOST_ACCESS,
    _PRIVILEGED,
)
"""All SCCs. `restricted-v2` is bound to all authenticated users in the bootstrap policy."""
