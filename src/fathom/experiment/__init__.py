"""Experiments as files: what is to be run, and what came of it."""
