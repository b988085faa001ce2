"""Run by the interpreter to be checked: the stacks of events, asked for so often that they are found by what is
remembered of them, against sys._getframe.

usage: python walker_interned.py LIBRARY FOLDER [THREADS_LIBRARY]

Prints one line of JSON per scenario: stacks asked for, how many of them were none, the first differences. Stacks are
asked for with the interpreter lock and without; a stack's id must stand for one chain of frames all along, and the
journal must say of it what the interpreter's own frame objects said. Needs nothing but the standard library. With
THREADS_LIBRARY, which is walker_threads.c, only the scenarios that need it are run.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from walker_elsewhere import find_interpreter_runner, run_beside
from walker_looks import Looks

from gpumem import abi
from gpumem.vocabulary import EventKind

ROUNDS = 12

Ways = Sequence[int]
"""Which way step() goes on at each depth."""


looks: Looks


# ---- chains by description ----


class Made:
    def __init__(self, path: Ways, at: int) -> None:
        step(path, at)


def walk(path: Ways, at: int) -> Iterator[None]:
    yield step(path, at)


def step(path: Ways, at: int = 0) -> None:
    """Goes on by the kind of call that `path` names for this depth; at its end a stack is asked for."""
    if at == len(path):
        looks()
    elif path[at] == 0:  # noqa: SIM114 (another line is another stack)
        step(path, at + 1)
    elif path[at] == 1:
        step(path, at + 1)
    elif path[at] == 2:
        sorted([0], key=lambda _: step(path, at + 1))
    elif path[at] == 3:
        [step(path, inner) for inner in (at + 1,)]
    elif path[at] == 4:
        next(walk(path, at + 1))
    elif path[at] == 5:
        Made(path, at + 1)


def vary(chance: random.Random, path: Ways) -> Ways:
    """A path that differs in one place, as chains that are taken for each other would."""
    place = chance.randrange(len(path))
    return (*path[:place], chance.randrange(6), *path[place + 1 :])


def orders(seed: int = 1, path_count: int = 60) -> None:
    """One order of chains again and again, as of a training step, each time a little changed."""
    chance = random.Random(seed)
    paths: list[Ways] = [chance.choices(range(6), k=chance.choice((1, 2, 3, 8, 20))) for _ in range(path_count)]
    for _ in range(ROUNDS):
        for path in paths:
            step(path)
        for _ in range(3):
            paths[chance.randrange(path_count)] = vary(chance, chance.choice(paths))


def deep_chains() -> None:
    """Around the most frames that are remembered, and far beyond."""
    for depth in (*range(100, 132), 300, 900):
        path = [0] * depth
        for changed in (0, depth // 2, depth - 1):
            other = [*path]
            other[changed] = 1
            for _ in range(4):
                step(path)
                step(other)


def more_chains_than_are_remembered() -> None:
    chance = random.Random(2)
    paths = [[*chance.choices(range(2), k=10), *([0] * 85)] for _ in range(620)]
    for _ in range(4):
        for path in paths:
            step(path)


# ---- frames that lie where others lay ----


def one_generator_from_many_places() -> None:
    """The innermost frame stays where it is; what differs is who resumes it, or how deep that one is."""

    def endless() -> Iterator[None]:
        while True:
            yield looks()

    def resume(depth: int, way: int) -> None:
        if depth and way % 2:  # noqa: SIM114 (likewise)
            resume(depth - 1, way // 2)
        elif depth:
            resume(depth - 1, way // 2)
        elif way == 0:
            next(generator)
        else:
            next(generator)

    generator = endless()
    for _ in range(ROUNDS):
        for depth in range(5):
            for way in range(1 << depth + 1):
                resume(depth, way)


def generators_that_come_and_go() -> None:
    def first() -> Iterator[None]:
        yield looks()
        yield looks()

    def second() -> Iterator[None]:
        yield looks()
        yield looks()

    def outer(inner: Callable[[], Iterator[None]]) -> Iterator[None]:
        yield from inner()

    for number in range(400):
        for _ in outer(first if number // 7 % 2 else second):
            pass


def coroutines() -> None:
    async def leaf(depth: int) -> None:
        if depth:
            await leaf(depth - 1)
        looks()
        await asyncio.sleep(0)
        looks()

    async def all_of_them() -> None:
        for _ in range(ROUNDS):
            await asyncio.gather(*(leaf(depth) for depth in range(12)))

    asyncio.run(all_of_them())


def code_that_ends() -> None:
    """Functions of one shape, each gone before the next is made, where it then lies."""
    for number in range(600):
        names: dict[str, object] = {"looks": looks}
        text = f"def made_{number % 97:04d}():\n" + "\n" * (number % 3) + "    looks()\n"
        exec(compile(text, f"<made {number % 89:05d}>", "exec"), names)
        for _ in range(5):
            names[f"made_{number % 97:04d}"]()  # type: ignore[operator]
        names.clear()
        if number % 100 == 0:
            gc.collect()


# ---- threads ----


def threads() -> None:
    run_beside((code_that_ends, one_generator_from_many_places, coroutines, *([orders] * 3)), code_that_ends)


def short_threads() -> None:
    for number in range(200):
        in_thread(lambda way=number % 3: [step((way, 1)) for _ in range(6)])  # type: ignore[misc]


def look_around() -> None:
    for path in ((0,), (1,), (2, 1), (0,), (4, 0)):
        step(path)


def threads_of_c() -> None:
    """Their Python state is another at each callback, and none in between."""
    library = ctypes.CDLL(sys.argv[3])
    callback = ctypes.CFUNCTYPE(None)(look_around)
    for kind in (ctypes.CDLL, ctypes.PyDLL):
        intern = kind(str(abi.library_path())).gm_walker_intern_current
        for _ in range(3):
            outside = library.call_from_thread(callback, intern, 40)
            if outside != 0:
                looks.different.append(f"{outside} stacks of a thread without Python")


def two_states_of_a_thread() -> None:
    if sys.version_info < (3, 12):
        return  # CPython 3.11 does not say which of them runs
    library = ctypes.PyDLL(sys.argv[3])
    library.call_under_new_state.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    intern = ctypes.cast(ctypes.PyDLL(str(abi.library_path())).gm_walker_intern_current, ctypes.c_void_p)
    for _ in range(ROUNDS):
        for path in ((0,), (1, 4), (2, 5)):
            step(path)
            wrong = library.call_under_new_state(lambda path=path: step(path), intern, 4)
            if wrong:
                looks.different.append(f"{wrong} wrong stacks asked for around another state")
            step(path)


# ---- other interpreters ----

INSIDE = """
import ctypes, os
for kind in (ctypes.CDLL, ctypes.PyDLL):
    intern = kind({library!r}).gm_walker_intern_current
    os.write({pipe}, bytes(intern() != 0 for _ in range(6)))
"""


def sub_interpreters() -> None:
    """While there is one, a stack without the lock is none rather than a wrong one."""
    run = find_interpreter_runner()
    reading, writing = os.pipe()
    text = INSIDE.format(library=str(abi.library_path()), pipe=writing)
    is_over = threading.Event()

    def look_on(seed: int) -> None:
        while not is_over.is_set():
            orders(seed, 10)

    others = [threading.Thread(target=look_on, args=(seed,)) for seed in (3, 4)]
    for thread in others:
        thread.start()
    for _ in range(4):
        run(text)
        orders(5, 10)
        in_thread(lambda: run(text))
        orders(5, 10)
    is_over.set()
    for thread in others:
        thread.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        inside = pipe.read()
    if inside != bytes(8 * 12):
        looks.different.append(f"stacks inside sub-interpreters: {inside!r}")


# ---- forks ----


def forks() -> None:
    fork_and_look()
    in_thread(fork_and_look)
    orders(6, 20)


def in_thread(body: Callable[[], None]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def fork_and_look() -> None:
    """The child shows the very frames that the parent showed, and has a journal of its own."""
    child = None
    while True:
        orders(6, 20)
        if child is not None:
            end_child()
        child = os.fork()
        if child:
            break
        looks.chains.clear()
        looks.begin()
        abi.record_event(EventKind.ALLOC, device=0, address=1, requested_bytes=512)
    _, status = os.waitpid(child, 0)
    if status != 0:
        looks.different.append(f"a forked child ended with {status}")


def end_child() -> None:
    status = 1
    try:
        abi.stop_recording("exit")
        looks.compare_with_journal(folder / f"child.{os.getpid()}.gpumem.journal")
        is_right = not looks.different and looks.none_count == 0 and looks.count == ROUNDS * 20
        status = 0 if is_right else 1
    finally:
        os._exit(status)


SCENARIOS: tuple[Callable[[], None], ...] = (
    orders,
    deep_chains,
    more_chains_than_are_remembered,
    one_generator_from_many_places,
    generators_that_come_and_go,
    coroutines,
    code_that_ends,
    threads,
    short_threads,
    sub_interpreters,
    forks,
)
WITH_C: tuple[Callable[[], None], ...] = (threads_of_c, two_states_of_a_thread)

folder = Path()


def main() -> None:
    global looks, folder
    library, folder = Path(sys.argv[1]), Path(sys.argv[2])
    abi.library_path = lambda: library
    reason = abi.start_walker()
    assert reason is None, reason
    path = folder / "run.gpumem.journal"
    pattern = folder / "child.%d.gpumem.journal"
    abi.start_recording(path, run_id=bytes(16), stacks=True, fork_path_pattern=pattern)
    sys.setrecursionlimit(5000)
    looks = Looks(library)
    for scenario in WITH_C if sys.argv[3:] else SCENARIOS:
        looks.begin()
        scenario()
        looks.compare_with_journal(path)
        row = {"name": scenario.__name__, "looks": looks.count, "none": looks.none_count}
        row |= {"none_held": looks.none_held_count, "different_count": len(looks.different)}
        print(json.dumps({**row, "different": looks.different[:3]}), flush=True)
    abi.stop_recording("exit")


if __name__ == "__main__":
    main()
