"""The GPU benchmark: every kernel of a mixture-of-experts layer and whole steps, beside the device's limits."""
