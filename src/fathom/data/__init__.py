"""Federations: the data that clients keep."""

from fathom.data.federation import Federation

__all__ = ["Federation"]
