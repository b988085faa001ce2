"""Parent links of stacks and scopes, checked: each row names an earlier step towards row 0.

Owns: the check. Must not know: what a row is. Imports no Parquet, so that a journal's entries are read without it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpumem.errors import TraceTruncated


def check_links(parents: npt.NDArray[np.uint32], where: str) -> None:
    """Raises TraceTruncated unless `parents` leads from every row to row 0: jumps double until all are there."""
    if not len(parents) or int(parents.max()) >= len(parents) or parents[0]:
        raise TraceTruncated(f"{where} is damaged: its links name rows that do not exist.")
    jumps = parents
    for _ in range(len(parents).bit_length() + 1):
        if not jumps.any():
            return
        jumps = jumps[jumps]
    raise TraceTruncated(f"{where} is damaged: its links go in a circle.")
