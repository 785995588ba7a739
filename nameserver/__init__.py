"""DNS server for names of the cluster: each client sees the names that its VNID reaches; other names are forwarded."""
