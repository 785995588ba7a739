"""Security context constraints: the decision about pods, and the IDs of namespaces."""
