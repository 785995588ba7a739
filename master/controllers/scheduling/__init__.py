"""Scheduling of pods: filter, score, preempt, bind."""
