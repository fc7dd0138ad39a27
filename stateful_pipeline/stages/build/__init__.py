"""Gives each target its engine."""
