"""Figures of this machine: what Podlane takes, beside the least that the machine itself takes, in the same run."""
