"""What computes: the registry of ops and candidates, the reference, and one file per implementation.

* ``ops`` states each op's contract; ``reference`` is the oracle, in plain torch;
* every other module here is one implementation and lists what it offers in ``CANDIDATES``;
* ``plan`` picks the best candidate per layer at load time and records why the others lost;
* ``problems`` compares any candidate with the reference, for the conformance test and for ``--self-test``.
"""
