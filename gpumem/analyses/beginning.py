"""From when on a picture of a trace's curves is worth drawing.

Owns: the one rule for `gpumem timeline` and the page. Must not know: screens, how curves are thinned out.
A training run imports and starts for seconds and steps for milliseconds: drawn whole, its steps are a stroke at the
edge. What is left out lies before the first mark, end of a step and refused request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

QUIET_SHARE = 5
"""A curve is quiet until it reaches this part of its most: a fifth."""
TIME_SHARE = 3
"""Nothing is left out where the quiet time is less than this part of the whole: a third."""
MARGIN_SHARE = 16
"""Of the time that is drawn, how much lies before the curves move."""

Int64s = npt.NDArray[np.int64]


def find_beginning_ns(time_ns: Int64s, curves: Sequence[Int64s], noted_ns: Iterable[int], *, duration_ns: int) -> int:
    """When to begin: shortly before any curve reaches a fifth of its most, or anything is noted; 0 for all of it."""
    reached = [int(time_ns[int((curve * QUIET_SHARE >= curve.max()).argmax())]) for curve in curves if curve.any()]
    if not reached:
        return 0
    moves_ns = min(*reached, *noted_ns, duration_ns)
    if moves_ns * TIME_SHARE < duration_ns:
        return 0
    return max(0, moves_ns - max(1, duration_ns - moves_ns) // MARGIN_SHARE)
