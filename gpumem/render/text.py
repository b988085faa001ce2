"""Foreign text made safe to print.

Owns: which characters are shown as escapes. Must not know: terminals, styles. Imports nothing.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with everything that is not plainly visible written as an escape: control and bidirectional characters,
    line breaks, and the bytes of a name that is no text (`\\xff`).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return ascii(char)[1:-1]
