"""The ConfigMap cluster-info: URL and authorities of an API server, for machines that join. Pure.

The names are those of kubeadm. Everybody may read the object, so a reader trusts it only after a check of a hash.
"""

NAMESPACE, NAME, KUBECONFIG_KEY = "kube-public", "cluster-info", "kubeconfig"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
HASH_PREFIX = "sha256:"
"""Before the hex digits of the hash of a public key (SubjectPublicKeyInfo)."""

AUTHORITY_KEY = "podlane-authority"
"""Key of the ConfigMap with the key identifier of the authority that signs. Only a Podlane master writes it."""

TRUSTED_ANNOTATION, ISSUERS_ANNOTATION = "podlane.io/trusted-authorities", "podlane.io/certificate-authorities"
"""Annotations of a Node: key identifiers of the authorities that the node trusts, and of those of its certificates."""
