"""How a model is spread over devices."""
