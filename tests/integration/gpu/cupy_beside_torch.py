"""PyTorch and CuPy in one program: each makes, keeps and frees blocks of its own; CuPy comes first where asked.

gpumem run --allocator auto|gpumem cupy_beside_torch.py [cupy-first]
"""

import importlib
import sys

order = ("cupy", "torch") if "cupy-first" in sys.argv else ("torch", "cupy")
modules = {name: importlib.import_module(name) for name in order}
cupy, torch = modules["cupy"], modules["torch"]

MIB = 1 << 20


def main() -> None:
    arrays, tensors = [], []
    for number in range(40):
        arrays.append(cupy.zeros((number % 7 + 1) * MIB // 3, dtype=cupy.uint8))
        tensors.append(torch.zeros((number % 5 + 1) * MIB // 2, dtype=torch.uint8, device="cuda"))
        if number % 3 == 0:
            del arrays[0], tensors[0]
    assert int(arrays[-1].sum()) == int(tensors[-1].sum()) == 0
    print(f"{len(arrays)} arrays and {len(tensors)} tensors kept; PyTorch says {torch.cuda.memory_allocated()} bytes")


if __name__ == "__main__":
    main()
