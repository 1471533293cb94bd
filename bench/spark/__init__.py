"""Benchmarks of the Spark source and sink: `python -m bench.spark`."""
