"""Types and requests of the pod network (network.openshift.io, podlane.io)."""
