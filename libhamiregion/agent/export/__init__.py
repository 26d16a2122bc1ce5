"""The exporter: what is exported, from which figures, as which text."""
