"""Names of the cluster: what each means and for whom, told over UDP and TCP; other names are asked of other servers."""
