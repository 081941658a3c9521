"""How weights are stored, and how they become numbers."""
