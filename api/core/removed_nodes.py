"""The ConfigMap of removed nodes: name of a node → time (RFC 3339). Pure.

The master refuses certificates of the node that were issued until then.
"""

NAMESPACE, CONFIG_MAP = "kube-system", "podlane-removed-nodes"
