"""Holds MIB of device memory in one tensor until a line comes on stdin; with --mark NAME sets a mark first."""

import sys

import torch

from gpumem import mark

MiB = 1 << 20


def main(mebibytes: int, names: list[str]) -> None:
    held = torch.zeros(mebibytes * MiB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for name in names:
        mark(name)
    print("holding", held.numel(), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
