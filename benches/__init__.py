"""Benchmarks: how fast the project is, beside its peers and the machine's limit (results/)."""
