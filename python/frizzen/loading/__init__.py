"""From a name, a directory or a file to a model that can compute."""

from frizzen.loading.load import LoadRequest, load_model

__all__ = ["LoadRequest", "load_model"]
