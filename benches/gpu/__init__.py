"""The GPU benchmark: each kernel of a mixture-of-experts layer, and whole steps, beside the limits."""
