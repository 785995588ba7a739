"""A cluster of N nodes on one machine, each in a network namespace, with everything a real node has."""
