"""Writes docs/results, docs/performance.md and README.md: a module for each subject; `writer.py` joins sections."""
