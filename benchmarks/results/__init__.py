"""The tables of the docs, made from the records: `python -m benchmarks.results`."""
