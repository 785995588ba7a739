"""Networks of pods: attachment of sandboxes, DNS files, host ports."""
