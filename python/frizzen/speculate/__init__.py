"""Speculation in the worker: which drafts count."""
