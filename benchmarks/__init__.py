"""Benchmarks: every contender's result is checked before it is timed."""
