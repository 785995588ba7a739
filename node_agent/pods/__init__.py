"""Which pods run here, their workers, their status (kubelet: pod manager, pod workers, status manager, preemption)."""
