"""What all JSON documents share: their text, and a line of code in them.

Owns: how a document is written. Must not know: any finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gpumem.trace.model import Frame

Json = None | bool | int | str | Sequence["Json"] | Mapping[str, "Json"]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def document(content: Mapping[str, Json]) -> str:
    """The document's text; what is no Unicode text in it becomes U+FFFD."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return _LONE_SURROGATE.sub("\ufffd", text) + "\n"


def frame(line: Frame) -> Json:
    """A line of code."""
    return {"file": line.file, "line": line.line, "function": line.function}
