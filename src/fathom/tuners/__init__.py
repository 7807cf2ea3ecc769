"""Tuners choose the next round's hyperparameters."""

from fathom.tuners.base import SCHEDULES, clamp, fixed, schedule
from fathom.tuners.fathom import fathom
from fathom.tuners.plumb import FIRST as PLUMB_FIRST
from fathom.tuners.plumb import plumb

# By name, for specs and the command line.
TUNERS = {"fathom": fathom, "plumb": plumb, "fixed": fixed, "schedule": schedule}

# Those that only follow what they were given: they stay outside the box that `clamp` puts around the others.
OPEN_LOOP = ("fixed", "schedule")

# Those that have first values of their own and take no others.
FIRST = {"plumb": PLUMB_FIRST}

# Those that find out for themselves which learning rates are too large: their box has no other bound on it than this.
SELF_BOUND = {"plumb": PLUMB_FIRST.lr}

__all__ = ["FIRST", "OPEN_LOOP", "SCHEDULES", "SELF_BOUND", "TUNERS", "clamp", "fathom", "fixed", "plumb", "schedule"]
