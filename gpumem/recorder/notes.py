"""What recording says on the program's stderr.

Owns: saying it without harm to the program. Must not know: what is said.
"""

from __future__ import annotations

import sys


def say(sentence: str) -> None:
    """Writes a line to stderr; where the program has closed it, or its other end, nothing is said."""
    try:
        sys.stderr.write(f"gpumem: {sentence}\n")
    except (AttributeError, OSError, ValueError):  # None, a full disk or a pipe nobody reads, a closed file
        return
