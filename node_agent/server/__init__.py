"""The agent's HTTPS server: what a kubelet answers on port 10250."""
