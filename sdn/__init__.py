"""Connects the pods of a node to the cluster network and keeps projects apart; one process per node.

- `topology`: API objects and attached pods to the desired network of this node
- `controller`: one reconcile pass
- `model/`: values that drivers and pure modules share
- `pipeline/`: the flows of the bridge br0
- `cniserver/`: attaching and detaching pods
- `host/`: links, routes and firewall of the node itself
- `proxy/`: services, as kube-proxy implements them
- `cluster_dns/`: the name server of the node
- `query/`: traces, captures and reports for administrators
- `drivers/`: access to Open vSwitch, the kernel and nftables
"""
