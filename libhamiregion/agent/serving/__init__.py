"""Serving metrics over HTTP: listening, TLS and passwords, slow clients, the landing page."""
