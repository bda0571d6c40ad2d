"""Do two implementations give the same answer: relative errors that never hide a nan or a wrong shape."""

import math

import numpy as np


def relative_error(got, want) -> float:
    """||got - want|| / ||want|| in float64 (absolute where want is zero); nan where either holds a nan, inf where shapes differ."""
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    if got.shape != want.shape:
        return math.inf
    distance, size = np.linalg.norm((got - want).ravel()), np.linalg.norm(want.ravel())
    return float(distance / size if size > 0 else distance)
