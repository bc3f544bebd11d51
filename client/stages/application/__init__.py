"""The application: all its stages, the worker that runs them, and the program that begins flows and awaits replies."""
