"""One file per family of models: which checkpoints it reads, and what it is made of."""
