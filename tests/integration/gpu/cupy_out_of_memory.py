"""Takes the whole card through CuPy until it refuses, then goes on; prints CuPy's own error's name."""

import cupy

held = []
try:
    while True:
        held.append(cupy.empty(4 << 30, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError as error:
    print(f"{type(error).__name__} after {len(held) > 4}: {str(error).split('(')[0]}")
del held[-1]
stream = cupy.cuda.Stream()
with stream:
    again = cupy.ones(1 << 20)
    print(float(again.sum()))
