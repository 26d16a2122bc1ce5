"""What was observed of a node, as values, and pure functions of it. Nothing here reads."""
