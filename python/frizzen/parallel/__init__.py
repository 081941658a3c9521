"""Streams of one device; later groups of devices."""
