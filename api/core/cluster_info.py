"""The ConfigMap cluster-info: URL and authorities of an API server, for machines that join. Pure.

The names are those of kubeadm. Everybody may read the object, so a reader trusts it only after a check of a hash.
"""

NAMESPACE, NAME, KUBECONFIG_KEY = "kube-public", "cluster-info", "kubeconfig"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
HASH_PREFIX = "sha256:"
"""Before the hex digits of the hash of a public key (SubjectPublicKeyInfo)."""
