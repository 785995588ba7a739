"""Specs of the Kubernetes API conformance suite, and those that cannot pass against the master, each with its reason.

The suite has the specs whose names match one of GROUPS. A spec has the first reason of NOT_ASKED whose pattern matches
its name. A spec without a reason must pass.
"""

from __future__ import annotations

GROUPS = (
    r"\[sig-api-machinery\]",
    r"\[sig-cli\]",
    r"\[sig-apps\]",
    r"\[sig-auth\]",
    r"\[sig-scheduling\]",
    r"\[sig-instrumentation\]",
    r"\[sig-network\]",
    r"\[k8s\.io\] (Lease|NodeLease)|\[sig-node\] (PodTemplates|ConfigMap)",
)

CUSTOM = "needs kinds that a client defines: the master serves the kinds that it knows"
WEBHOOKS = "needs admission webhooks: the master calls none"
CLOUD = "needs a cloud, a load balancer or an add-on"
DATAPATH = "is about packets and names: network_suite asks it, as far as it can be asked here"
HARM = "stops daemons or cuts nodes off through SSH"
OWN = "looks for what only kube-apiserver itself has"
LATER = "is not so any more in the releases after 1.20"
OLD = "asks for what Kubernetes has given up since 1.20"
NODES = "needs more nodes than one"
IMAGES = "needs an image from a registry"

NOT_ASKED = (
    ("AdmissionWebhook|ConversionWebhook", WEBHOOKS),
    ("CustomResource|ustom resource|CRD|Aggregator", CUSTOM),
    ("Etcd failure|DaemonRestart|Network Partition|after restarting", HARM),
    (r"\[Feature:(Elasticsearch|Stackdriver|GPU|Recreate|NEG|kubemci|Ingress\] multicluster)", CLOUD),
    (
        r"Stackdriver|Logging soak|Multi-AZ|[Ll]oad.?[Bb]alanc|ESIPP|Firewall|GPU|Metadata Concealment|Upgrade|GCE",
        CLOUD,
    ),
    ("clustered applications|ClusterDns|PerformanceDNS|configMap nameserver|cloud-provider-gcp|LB health|L7", CLOUD),
    (r"\] DNS", DATAPATH),
    (r"Networking|Conntrack|KubeProxy|NoSNAT|NetworkPolicy between|DualStack|latency|SCTP|session affinity", DATAPATH),
    ("Guestbook|no conflict between pods with same hostPort", DATAPATH),
    (r"in-cluster config|InClusterConfig|OIDC discovery of service account issuer", DATAPATH),
    (
        r"Services should (allow pods|be able to (change the type( from|[^\[]*ports)|create|up|update)|be rejected"
        "|create endpoints|implement|preserve)",
        DATAPATH,
    ),
    (r"StatefulSetBasic\] .*(with PVCs|basic identity|not deadlock)", "needs a storage class that provides"),
    (r"2 nodes|SchedulerPreemption .Serial. validates (basic|lower)|rollback without unnecessary", NODES),
    (r"PodTopologySpread|PodAntiAffinity|preferably|pod can tolerate", NODES),
    (r"StatefulSetBasic\] should adopt", "needs a storage class that provides"),
    ("has been compacted away", "waits until history is forgotten by its age: here it is by its amount"),
    ("pod overhead", "asks for the overhead of a runtime, which is not heeded"),
    ("private image", IMAGES),
    (r"health handlers|priority and fairness|storage version hash|MetricsGrabber", OWN),
    (r'accept "application/vnd.kubernetes.protobuf"$', "takes answers in protobuf only: ours are JSON"),
    (r"exceeds active deadline|more than 1 IngressClass|Kubectl version should", LATER),
    (r"PodSecurityPolicy|componentstatuses|single API token exists|avoidPod annotation", OLD),
)
