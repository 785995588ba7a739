"""Controllers of workloads: pods by template, rollouts, jobs, and disruption budgets."""
