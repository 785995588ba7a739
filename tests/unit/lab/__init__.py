"""Parts of the lab that need no namespaces."""
