"""From a name, a directory or a file to a model that can compute: see ``load``.

Nothing is imported here, because models name their checkpoint's parameters by ``checkpoint`` and ``load``
knows the models.
"""
