"""Writes docs/performance.md: a module for each subject, and `writer.py` puts their sections together."""
