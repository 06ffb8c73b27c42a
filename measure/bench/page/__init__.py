"""Writes docs/results, docs/performance.md and README.md: one module per subject. `writer.py` replaces the sections."""
