"""The nine steps of nine_steps.py with CuPy: one GiB at a time between CPU and GPU.

Run it under `gpumem run`, which serves and records CuPy's memory; each step sets a mark.
"""

import cupy

try:
    from gpumem import mark
except ImportError:

    def mark(name: str) -> None:
        """Without gpumem a mark is nothing."""


GiB = 1 << 30


def show(step: str) -> None:
    """Waits for the GPU and sets a mark."""
    cupy.cuda.runtime.deviceSynchronize()
    mark(step)


def zeros() -> cupy.ndarray:
    """An array of one GiB on the GPU."""
    return cupy.zeros(GiB // 4, dtype=cupy.float32)


def main() -> None:
    show("cuda started")
    tiny = cupy.zeros(1, dtype=cupy.float32)
    show("tiny tensor")
    del tiny
    a = zeros()
    show("1 a on the GPU")
    b = zeros()
    show("2 b on the GPU")
    b = b.get()
    show("3 b to the CPU")
    c = zeros()
    show("4 c on the GPU")
    c = zeros()
    show("5 c on the GPU again")
    d = zeros()
    show("6 d on the GPU")
    del d
    show("7 d deleted")
    e = b.copy()
    show("8 e on the CPU")
    e = cupy.asarray(e)
    show("9 e to the GPU")
    assert a.size == b.size == c.size == e.size
    print("nine steps done")


if __name__ == "__main__":
    main()
