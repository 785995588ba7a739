"""The shared vocabulary: what can be wished for, and how it travels. Imports nothing of ours."""
