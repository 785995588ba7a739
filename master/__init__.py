"""The master: keeps the objects, serves them, hands out subnets and network ids, places pods."""
