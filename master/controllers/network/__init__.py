"""Controllers of the network: subnets, VNIDs, endpoints, and addresses of services."""
