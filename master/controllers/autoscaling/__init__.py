"""Controllers that change the number of pods of workloads by metrics."""
