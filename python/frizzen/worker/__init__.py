"""The torch worker: takes a step from a flat buffer, writes the sampled tokens into the same buffer.

Invariants: a worker is built, warmed up and called on one thread; steps run strictly in order; no Python
object is made per token; nothing on a step's path waits for a device except ``Worker.collect``.
"""
