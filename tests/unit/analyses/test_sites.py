"""The site rule: the innermost frame of the user's own code."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.analyses.sites import NO_SITE, SiteFinder, is_users_own
from gpumem.vocabulary import StackId
from trace_builder import MiB, TraceBuilder


@pytest.mark.parametrize(
    "file",
    [
        "/home/anna/train.py",
        "train.py",
        "/home/anna/gpumem/train.py",
        "/home/anna/lib/python/tool.py",
        "/srv/gpumem/recorder_of_birds.py",
        "C:\\work\\train.py",
        "/home/anna/extension/kernels.cu",
    ],
)
def test_own_code_is_the_users(file: str) -> None:
    assert is_users_own(file)


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3.11/random.py",
        "/opt/lib64/python3.13/asyncio/base_events.py",
        "/opt/py/lib/python3.13t/threading.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
        "C:\\Python\\Lib\\site-packages\\torch\\nn.py",
        "/usr/lib/python311.zip/runpy.py",
        "<string>",
        "<frozen runpy>",
        "/home/anna/checkout/gpumem/recorder/session.py",
        "/home/anna/checkout/gpumem/__main__.py",
        "/home/anna/checkout/cli/gpumem_cli/main.py",
        "",
        "??",
        "CUDACachingAllocator.cpp",
        "Blas.cu",
    ],
)
def test_library_code_is_not_the_users(file: str) -> None:
    assert not is_users_own(file)


def test_site_is_innermost_own_frame_else_innermost_frame() -> None:
    library = ("/venv/lib/python3.11/site-packages/torch/nn.py", 5, "forward")
    own = [("/home/a/model.py", 7, "block"), ("/home/a/train.py", 9, "main")]
    builder = TraceBuilder().segment(2 * MiB)
    builder.alloc("own", 1, stack=[library, *own]).alloc("library", 1, stack=[library, ("<string>", 1, "<module>")])
    trace = builder.alloc("none", 1).build()
    finder = SiteFinder(trace)
    rows = next(trace.event_batches(["stack"]))["stack"].tolist()[1:]
    sites = [finder.site(StackId(row)) for row in rows]
    assert [(site.file, site.line) if site else None for site in sites] == [
        ("/home/a/model.py", 7),
        ("/venv/lib/python3.11/site-packages/torch/nn.py", 5),
        None,
    ]


UNWIND = ("??", 0, "torch::unwind::unwind()")
ALLOCATOR = ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::malloc(void**)")
LIBRARY = ("/venv/lib/python3.12/site-packages/torch/nn.py", 5, "f")
EMPTY = ("??", 0, "at::detail::empty_cuda(c10::Device)")
BACKWARD = ("??", 0, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)")


@pytest.mark.parametrize(
    ("stack", "site"),
    [
        (
            [UNWIND, ALLOCATOR, EMPTY, ("/venv/lib/python3.12/site-packages/torch/nn.py", 5, "f"), ("t.py", 9, "main")],
            "main",
        ),
        ([UNWIND, ALLOCATOR, EMPTY, LIBRARY], "f"),
        ([UNWIND, ALLOCATOR, EMPTY, BACKWARD], BACKWARD[2]),
        ([UNWIND, ALLOCATOR, EMPTY], EMPTY[2]),
        ([UNWIND, ALLOCATOR], UNWIND[2]),
    ],
)
def test_frames_of_compiled_libraries_hide_no_line_of_the_program(stack: list[tuple[str, int, str]], site: str) -> None:
    trace = TraceBuilder().segment(2 * MiB).alloc("a", 1, stack=stack).build()
    rows = next(trace.event_batches(["stack"]))["stack"].tolist()
    found = SiteFinder(trace).site(StackId(rows[-1]))
    assert found is not None
    assert found.function == site


def test_sites_of_many_stacks_at_once_are_those_found_one_by_one() -> None:
    builder = TraceBuilder().segment(20 * MiB)
    for number in range(300):
        own = [(f"/home/a/m{number % 7}.py", number % 11, "f")] if number % 3 else []
        builder.alloc(str(number), 1, stack=[LIBRARY] * (number % 5) + own + [EMPTY, ("<string>", number, "g")])
    trace = builder.build()
    stacks = np.arange(len(trace.stacks.parents))
    together, alone = SiteFinder(trace).find_frames(stacks), SiteFinder(trace)
    expected = [alone.site_frame(StackId(stack)) for stack in stacks.tolist()]
    assert [None if row == NO_SITE else row for row in together.tolist()] == expected
    assert together[0] == NO_SITE
    assert (together[1:] != NO_SITE).all()
