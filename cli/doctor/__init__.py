"""`podlane doctor`: examines this host, and names for each problem the command that mends it."""
