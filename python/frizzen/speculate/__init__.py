"""Speculation in the worker: which drafts count (``verify``, ``rejection``), and drafters with a model.

``drafting`` is what the worker sees of a drafter; ``drafter`` the protocol; ``load`` makes one.
"""
