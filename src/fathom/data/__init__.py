"""Federations: the data that clients keep."""

from fathom.data.federation import Federation, at_least, pooled, split

__all__ = ["Federation", "at_least", "pooled", "split"]
