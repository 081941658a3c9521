"""How a model is spread over devices, and the streams of one device."""
