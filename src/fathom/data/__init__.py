"""Federations: the data that clients keep."""

from fathom.data.federation import Federation, split

__all__ = ["Federation", "split"]
