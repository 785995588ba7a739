"""Expressions in CEL: rules of custom resources, policies, match conditions. A process of its own evaluates them."""
