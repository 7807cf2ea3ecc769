"""Numbers as JSON can hold them."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same with null in place of NaN and infinities, which JSON does not have.

    >>> finite({"loss": float("nan"), "rounds": [1, 2.5]})
    {'loss': None, 'rounds': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
