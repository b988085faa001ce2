"""Run by the interpreter to be checked: compares walked frames with sys._getframe wherever Python code can run.

usage: python walker_scenarios.py LIBRARY [NAME...]

Prints one line of JSON per scenario: its name, how many chains were compared, the first differences, and why it was
not run where this interpreter lacks what it needs. Needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gpumem import abi

DEPTH_MAX = 1024

Chain = list[tuple[int, int]]
Scenario = Callable[[], None]


class NotHere(Exception):
    """This interpreter lacks what the scenario needs."""


class Comparison:
    """Counts the chains compared in a scenario and keeps the first differences."""

    def __init__(self, library: Path) -> None:
        # Both ways of calling C: CDLL lets go of the interpreter lock, PyDLL keeps it.
        self._walks = [self._walk_of(kind(str(library))) for kind in (ctypes.CDLL, ctypes.PyDLL)]
        self.count = 0
        self.different: list[str] = []

    @staticmethod
    def _walk_of(library: ctypes.CDLL) -> Callable[..., int]:
        walk = library.gm_walker_walk
        walk.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        walk.restype = ctypes.c_uint32
        return walk  # type: ignore[no-any-return]

    def __call__(self) -> None:
        """Compares from the caller's frame outwards; all looks are taken by one instruction of this function."""
        # Of its own each time: signal handlers and trace functions compare while this call is under way.
        codes, offsets = (ctypes.c_uint64 * DEPTH_MAX)(), (ctypes.c_uint32 * DEPTH_MAX)()
        arguments = (ctypes.addressof(codes), ctypes.addressof(offsets), DEPTH_MAX)
        found: list[Chain] = []
        # partial makes a C call of each: a call of a Python function leaves other marks in the caller's frame.
        looks = [functools.partial(walk, *arguments) for walk in self._walks]
        for look in (*looks, functools.partial(expected_chain)):
            chain = look()
            if isinstance(chain, int):
                chain = list(zip(codes[:chain], offsets[:chain], strict=True))
            found.append(chain)
        self.count += 1
        if not (found[0] == found[1] == found[2] and found[0]):
            self.different.append(describe_difference(*found))


def expected_chain() -> Chain:
    chain: Chain = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(chain) < DEPTH_MAX:
        chain.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return chain


def describe_difference(released: Chain, held: Chain, expected: Chain) -> str:
    rows = [
        f"{row}: {frames}"
        for row, frames in enumerate(zip(released, held, expected, strict=False))
        if len(set(frames)) > 1
    ]
    return f"depths {len(released)}, {len(held)}, expected {len(expected)}; {rows[:3]}"


compare: Comparison


# ---- functions of every make ----


def recurse(depth: int, last: Callable[[], object]) -> None:
    if depth:
        recurse(depth - 1, last)
    else:
        last()


def plain_functions() -> None:
    for depth in range(0, 300, 3):
        recurse(depth, compare)


def deep_recursion() -> None:
    sys.setrecursionlimit(20_000)
    for depth in (1000, 1020, 1030, 5000):
        recurse(depth, compare)


def generators() -> None:
    def leaf(count: int) -> Iterator[int]:
        for number in range(count):
            compare()
            try:
                yield number
            finally:
                compare()

    def nested(depth: int) -> Iterator[int]:
        compare()
        if depth:
            yield from nested(depth - 1)
        else:
            yield from leaf(3)
        compare()

    def taking() -> Iterator[None]:
        while True:
            try:
                yield compare()
            except ValueError:
                compare()

    for depth in (0, 1, 5, 40):
        assert sum(nested(depth)) == 3
        half = nested(depth)
        next(half)
        half.close()
    thrown = taking()
    next(thrown)
    thrown.throw(ValueError())  # type: ignore[attr-defined]
    assert sum(1 for _ in (compare() for _ in range(4))) == 4
    # A suspended generator that the garbage collector closes runs its finally blocks.
    cycle: list[object] = [leaf(2)]
    cycle.append(cycle)
    next(cycle[0])  # type: ignore[call-overload]
    del cycle
    gc.collect()


def coroutines() -> None:
    async def leaf() -> int:
        compare()
        await asyncio.sleep(0)
        compare()
        return 1

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            compare()
            yield number

    @contextlib.asynccontextmanager
    async def held() -> AsyncIterator[None]:
        compare()
        yield
        compare()

    async def nested(depth: int) -> int:
        if depth:
            return await nested(depth - 1)
        async with held():
            return await leaf() + sum([number async for number in numbers()])

    async def all_of_them() -> None:
        assert await asyncio.gather(*(nested(depth) for depth in range(20))) == [4] * 20
        await asyncio.get_running_loop().run_in_executor(None, plain_functions)

    asyncio.run(all_of_them())


def classes_and_comprehensions() -> None:
    class Meta(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            compare()
            return super().__new__(cls, name, bases, body)

        def __prepare__(*_: object) -> dict[str, object]:
            compare()
            return {}

    def decorate(thing: type) -> type:
        compare()
        return thing

    for number in range(40):

        @decorate
        class Made(metaclass=Meta):
            compare()
            found = tuple(compare() for _ in range(2) if number >= 0)
            listed = len([compare() for _ in range(2)])

            def __init__(self, value: int = 0) -> None:
                compare()
                self.value = value

            def __add__(self, other: int) -> int:
                compare()
                return self.value + other

            def __getattr__(self, name: str) -> int:
                compare()
                return 1

            def __getitem__(self, index: int) -> int:
                compare()
                return index

            def __hash__(self) -> int:
                compare()
                return 1

            def __eq__(self, other: object) -> bool:
                compare()
                return False

            def __iter__(self) -> Iterator[int]:
                compare()
                yield 1

            def __enter__(self) -> None:
                compare()

            def __exit__(self, *_: object) -> None:
                compare()

            def __format__(self, _: str) -> str:
                compare()
                return ""

            @property
            def double(self) -> int:
                compare()
                return self.value * 2

            @functools.cached_property
            def once(self) -> int:
                compare()
                return 1

        made = Made(number)
        with made:
            assert made + 1 == number + 1
        assert len({made: 1, Made(2): 2}) == 2
        assert [*made] == [1]
        assert f"{made}" == ""
        assert made.double + made.once + made.absent + made[3] == 2 * number + 5  # type: ignore[attr-defined]
    assert [[{compare() for _ in (1, 2)} for _ in (1, 2)], {key: compare() for key in (1, 2)}]


def constructors() -> None:
    class Plain:
        def __init__(self, value: int) -> None:
            compare()
            self.value = value

    class Slotted:
        __slots__ = ("value",)

        def __init__(self, value: int) -> None:
            cell = value
            compare()
            self.value = lambda: cell

    for number in range(200):
        Plain(number)
        Slotted(number)


def callbacks_from_c() -> None:
    def key(number: int) -> int:
        compare()
        return -number

    assert sorted(map(key, (1, 2, 3)), key=key) == [-1, -2, -3]
    assert max((1, 2), key=key) == 1
    assert functools.reduce(lambda left, right: key(left) - right, (1, 2, 3)) == 0
    assert re.sub("a", lambda match: str(key(1)), "aa") == "-1-1"
    compare_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 5)(5, 3, 1, 4, 2)
    ctypes.CDLL(None).qsort(numbers, 5, ctypes.sizeof(ctypes.c_int), compare_type(lambda *_: key(0)))
    exec(compile("compare()\nimport_hook = [compare() for _ in range(2)]", "<executed>", "exec"), {"compare": compare})
    eval("(lambda: compare())()")
    for wrapped in (functools.lru_cache(key), functools.partial(key, 3), functools.singledispatch(key)):
        wrapped(*(() if isinstance(wrapped, functools.partial) else (1,)))


# ---- code that comes and goes ----


def executed_functions() -> None:
    for number in range(3000):
        names: dict[str, object] = {"compare": compare}
        text = "\n" * (number % 7) + f"def made_{number % 5}():\n    x = {number}\n    compare()\n    return x\n"
        exec(compile(text, f"<made {number % 11}>", "exec"), names)
        assert names[f"made_{number % 5}"]() == number  # type: ignore[operator]
        names.clear()
        if number % 500 == 0:
            gc.collect()


def garbage_collection() -> None:
    class Finalized:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            compare()

    def closures(depth: int) -> Callable[[], object]:
        first, second, third = depth, [depth], Finalized()

        def inner(more: int = 0) -> object:
            nonlocal first
            first += more
            return (
                first,
                second,
                third,
                [lambda item=item: (first, item) for item in second],
                (item for item in second),
            )

        return closures(depth - 1) if depth else inner

    def callback(phase: str, _: dict[str, int]) -> None:
        compare()

    gc.callbacks.append(callback)
    threshold = gc.get_threshold()
    # Collections begin wherever memory is asked for, also between a frame's making and its first line (3.11).
    gc.set_threshold(1)
    try:
        for number in range(60):
            closures(number % 12)(1)
            kept = Finalized()
            reference = weakref.ref(kept, lambda _: compare())
            del kept, reference
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    gc.collect()


# ---- code that is watched ----


def watched() -> None:
    """What tracing, profiling and monitoring look at."""

    def work(depth: int) -> int:
        compare()
        values = [item for item in range(3) if item]
        with contextlib.suppress(KeyError):
            raise KeyError(depth)
        return work(depth - 1) if depth else sum(values) + sum(value for value in values)

    for depth in (0, 2, 5):
        assert work(depth) == 6
        assert sorted([2, 1], key=lambda item: work(0) + item) == [1, 2]


def tracing() -> None:
    def trace(frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes = True
        compare()
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        watched()
    finally:
        sys.settrace(None)
    watched()


def profiling() -> None:
    sys.setprofile(lambda *_: compare())
    try:
        watched()
    finally:
        sys.setprofile(None)


def monitoring() -> None:
    if sys.version_info < (3, 12):
        raise NotHere("sys.monitoring comes with 3.12")
    events = sys.monitoring.events
    names = ("PY_START", "PY_RETURN", "LINE", "INSTRUCTION", "JUMP", "BRANCH", "CALL", "PY_YIELD", "PY_RESUME", "RAISE")
    tool = sys.monitoring.PROFILER_ID
    sys.monitoring.use_tool_id(tool, "walker")
    for name in names:
        sys.monitoring.register_callback(tool, getattr(events, name), lambda *_: compare())
    sys.monitoring.set_events(tool, sum(getattr(events, name) for name in names))
    try:
        watched()
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    watched()


def signal_handlers() -> None:
    handled = 0

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal handled
        compare()
        handled += 1

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while handled < 100:
            sum(number for number in range(50))
            recurse(20, lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


# ---- threads ----


def threads() -> None:
    parts = (plain_functions, generators, coroutines, classes_and_comprehensions, constructors, watched)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=part) for part in parts for _ in range(2)]
        for thread in running:
            thread.start()
        executed_functions()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def thread_without_python() -> None:
    core = ctypes.CDLL(str(abi.library_path()))
    system = ctypes.CDLL(None)
    for function in (core.gm_walker_intern_current, core.gm_walker_walk):
        thread, result = ctypes.c_ulong(), ctypes.c_void_p(1)
        # Called with null and whatever lies in the other registers: without frames nothing is written.
        assert system.pthread_create(ctypes.byref(thread), None, function, None) == 0
        assert system.pthread_join(thread, ctypes.byref(result)) == 0
        compare.count += 1
        if (result.value or 0) & 0xFFFFFFFF:
            compare.different.append(f"a thread without Python has depth {result.value}")


def thread_made_in_c() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: recurse(3, compare))
    system = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    for _ in range(20):
        assert system.pthread_create(ctypes.byref(thread), None, callback, None) == 0
        assert system.pthread_join(thread, None) == 0


# ---- other interpreters ----

INSIDE = """
import ctypes, os, threading
def depths():
    for kind in (ctypes.CDLL, ctypes.PyDLL):
        walk = kind({library!r}).gm_walker_walk
        walk.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        os.write({pipe}, bytes([walk(None, None, 0)]))
depths()
thread = threading.Thread(target=depths)
thread.start()
thread.join()
"""


def sub_interpreters() -> None:
    run = find_interpreter_runner()
    reading, writing = os.pipe()
    text = INSIDE.format(library=str(abi.library_path()), pipe=writing)
    run(text)
    in_thread = threading.Thread(target=run, args=(text,))
    in_thread.start()
    in_thread.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        depths = list(pipe.read())
    compare.count += len(depths)
    if depths != [0] * 8:
        compare.different.append(f"depths inside sub-interpreters are {depths}")
    recurse(5, compare)


def find_interpreter_runner() -> Callable[[str], None]:
    """A function that runs source in a fresh sub-interpreter that shares the lock and may load any extension."""
    if sys.version_info >= (3, 13):
        import _interpreters as module

        make = functools.partial(module.create, "legacy")
    else:
        import _xxsubinterpreters as module

        make = functools.partial(module.create, isolated=False)

    def run(text: str) -> None:
        interpreter = make()
        failure = module.run_string(interpreter, text)
        assert failure is None, failure
        module.destroy(interpreter)

    return run


SCENARIOS: tuple[Scenario, ...] = (
    plain_functions,
    deep_recursion,
    generators,
    coroutines,
    classes_and_comprehensions,
    constructors,
    callbacks_from_c,
    executed_functions,
    garbage_collection,
    tracing,
    profiling,
    monitoring,
    signal_handlers,
    threads,
    thread_without_python,
    thread_made_in_c,
    sub_interpreters,
)


def main() -> None:
    global compare
    library = Path(sys.argv[1])
    abi.library_path = lambda: library
    reason = abi.start_walker()
    assert reason is None, reason
    for scenario in SCENARIOS:
        if sys.argv[2:] and scenario.__name__ not in sys.argv[2:]:
            continue
        compare = Comparison(library)
        not_run = None
        try:
            scenario()
        except NotHere as absent:
            not_run = str(absent)
        row = {"name": scenario.__name__, "chains": compare.count, "different": compare.different[:3]}
        print(json.dumps({**row, "not_run": not_run, "different_count": len(compare.different)}), flush=True)


if __name__ == "__main__":
    main()
