"""What the services of a node share: events, backoff, locks, and who else steers the node."""
