"""Constructs the module, finds its states and captures it."""
