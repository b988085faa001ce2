"""Lists that are cut say what is left out."""

from __future__ import annotations

from gpumem.analyses.explain import find_explanation
from gpumem.render.terminal.explain import render_explanation
from gpumem.render.terminal.theme import UNICODE, Page, site_text
from gpumem.units import MIB
from trace_builder import TraceBuilder


def test_pinned_segments_that_are_not_listed_are_summed() -> None:
    builder = TraceBuilder(block_bytes_known=True)
    for number in range(5):
        builder.segment(20 * MIB).alloc(f"pin{number}", 12 * MIB)
    shown = render_explanation(find_explanation(builder.build()), Page(80, UNICODE)).plain
    assert "It cannot return 40.00 MiB of gaps in 5 segments" in shown
    assert "    (2 more segments, 16.00 MiB of gaps)\n" in shown


def test_function_of_cpp_stands_without_its_parameters() -> None:
    function = "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"
    assert site_text("??", 0, function, 80, "…") == "??:0 torch::autograd::generated::AddmmBackward0::apply"
    assert site_text("a.cpp", 3, "at::(anonymous namespace)::f(int)", 80, "…") == "a.cpp:3 at::(anonymous namespace)::f"
