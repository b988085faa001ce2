"""A trace whose every name attacks the page: markup, scripts, quotes, bytes that are no text, endless lines.

Owns: the names. Must not know: pages.
"""

from __future__ import annotations

from gpumem.trace.model import Trace
from trace_builder import MiB, TraceBuilder

RUNS = "window.pwned = true"
NAMES = (
    f"</script><script>{RUNS}</script>",
    f"<img src=x onerror='{RUNS}'>",
    f'"><svg onload="{RUNS}">',
    f"javascript:{RUNS}//${{{RUNS}}}",
    "<b>bold</b><br><a href='https://example.invalid/'>link</a>",
    "line\nbreak\x1b[31m\u202eevil\udcff\x00end",
    "&lt;i&gt; & ' \" ` \\ {{x}} %s",
    "long" * 2000,
)


def hostile_trace() -> Trace:
    """Allocations, marks, scopes, threads and a program named by attackers."""
    builder = TraceBuilder(block_bytes_known=True, command_line=NAMES, settings=NAMES[0], versions={"torch": NAMES[1]})
    builder.device_facts(0, name=NAMES[1], capacity_bytes=1 << 37, uuid=NAMES[0])
    builder.segment(20 * MiB)
    for number, name in enumerate(NAMES):
        stack = [(f"/{name}.py", number + 1, name), (f"{name}", 1, "<module>")]
        builder.on(thread=name).segment(20 * MiB).scope(name)
        builder.alloc(f"block {number}", (number + 1) * MiB, stack=stack).mark(name)
        builder.reading(process_bytes=900 * MiB, used_bytes=1000 * MiB, total_bytes=1 << 37)
    builder.free("block 2").step(NAMES[0]).oom(1 << 40, free=1 << 30)
    return builder.build()
