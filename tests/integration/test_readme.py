"""README's examples in Python run as they stand, on a simulated GPU, and the figures that it names are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpumem import memory
from gpumem.units import GIB, MIB

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
BEFORE = f"""
import gpumem
gpu = gpumem.Allocator("simulated")
batches = [1, 2, 3]
model = evaluate = lambda batch: gpu.free(gpu.alloc({MIB}))
"""


def run_example(example: str, folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_moments_are_named_and_a_part_is_recorded_and_read(tmp_path: Path) -> None:
    printed = run_example(BEFORE + EXAMPLES[0], tmp_path)
    assert (tmp_path / "eval.gpumem").exists()
    assert sum(map(int, printed)) == 2 * MIB, "one request of 1 MiB and its free, from the segment that was there"


def test_the_allocator_s_figures_are_torch_s(tmp_path: Path) -> None:
    stats, figures = run_example(EXAMPLES[1].replace('"cuda"', '"simulated"'), tmp_path)
    assert f"reserved_bytes={GIB}" in stats
    assert figures == f"{GIB} 0"


def test_figures_that_are_named_are_there() -> None:
    (named,) = re.findall(r"^`gpumem\.memory` holds (.*?) and their kin", TEXT, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"`(\w+)`", named):
        assert callable(getattr(memory, name)), name
