"""Benchmarks: what is measured, as ratios within one run, never asserted as a time."""
