"""What models are made of. A layer resolves its kernels when it is built, and keeps only bound functions."""
