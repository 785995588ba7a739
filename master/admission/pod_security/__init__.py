"""Pod Security: the Pod Security Standards, and their admission by labels of namespaces."""
