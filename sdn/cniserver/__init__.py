"""Attaches pods to the bridge and detaches them: the daemon's side of CNI."""
