"""CustomResourceDefinitions: what their schemas say, and what they do to custom resources."""
