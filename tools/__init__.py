"""The project's own command-line tools; standard library only: they run before anything is installed."""
