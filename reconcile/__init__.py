"""The shared loop: how a wish becomes so. Imports nothing of ours."""
