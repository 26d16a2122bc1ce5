"""Reports about what was used, from a recording or from Prometheus."""
