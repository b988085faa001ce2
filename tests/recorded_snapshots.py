"""The recorded snapshots: their bytes, their values, what PyTorch said of them."""

from __future__ import annotations

import functools
import json
import lzma
import pickle
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recordings"
SAMPLES = Path(__file__).parents[1] / "sample_traces"
"""What `gpumem run` recorded."""
NAMES = sorted(path.name.removesuffix(".pickle.xz") for path in FOLDER.glob("*.pickle.xz"))
FACTS: dict[str, dict[str, Any]] = json.loads((FOLDER / "facts.json").read_text(encoding="utf-8"))


def recording_path(name: str) -> Path:
    return FOLDER / f"{name}.pickle.xz"


@functools.lru_cache(maxsize=8)
def recorded_bytes(name: str) -> bytes:
    return lzma.decompress(recording_path(name).read_bytes())


def recorded_values(name: str) -> dict[str, Any]:
    """A fresh copy of the snapshot's dict."""
    values: dict[str, Any] = pickle.loads(recorded_bytes(name))
    return values
