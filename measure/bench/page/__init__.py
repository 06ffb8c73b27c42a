"""Writes docs/results, docs/performance.md and README.md: a module for each subject, and `writer.py` puts sections together."""
