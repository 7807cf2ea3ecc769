"""Tuners choose the next round's hyperparameters."""

from fathom.tuners.base import SCHEDULES, clamp, fixed, schedule
from fathom.tuners.fathom import fathom

# By name, for specs and the command line.
TUNERS = {"fathom": fathom, "fixed": fixed, "schedule": schedule}

# Those that only follow what they were given: they stay outside the box that `clamp` puts around the others.
OPEN_LOOP = ("fixed", "schedule")

__all__ = ["OPEN_LOOP", "SCHEDULES", "TUNERS", "clamp", "fathom", "fixed", "schedule"]
