"""Scenarios of the walker's comparison: functions of every make, and code that comes and goes.

Owns: what they call. Must not know: what is compared. Needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import re
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

from walker_compare import compare


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

        assert len(Made().found) == Made.listed == 2
    assert [[{compare() for _ in (1, 2)} for _ in (1, 2)], {key: compare() for key in (1, 2)}]


class Special:
    """Compares in the methods that Python itself calls."""

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


def special_methods() -> None:
    for number in range(40):
        made = Special(number)
        with made:
            assert made + 1 == number + 1
        assert len({made: 1, Special(2): 2}) == 2
        assert [*made] == [1]
        assert f"{made}" == ""
        assert made.double + made.once + made.absent + made[3] == 2 * number + 5


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


def executed_functions() -> None:
    for number in range(3000):
        names: dict[str, object] = {"compare": compare}
        text = "\n" * (number % 7) + f"def made_{number % 5}():\n    x = {number}\n    compare()\n    return x\n"
        exec(compile(text, f"<made {number % 11}>", "exec"), names)
        assert names[f"made_{number % 5}"]() == number  # type: ignore[operator]
        names.clear()
        if number % 500 == 0:
            gc.collect()


class Finalized:
    """Holds itself, and compares when it is collected."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        compare()


def garbage_collection() -> None:
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
