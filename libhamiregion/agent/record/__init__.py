"""Recording what a node uses into a file."""
