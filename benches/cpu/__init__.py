"""The CPU benchmark: SmolLM2-135M at 1, 8 and 32 streams, and one long prefill."""
