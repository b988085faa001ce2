"""Uses two GPUs from one process: blocks on both, copies between them, one heap emptied. Prints PyTorch's figures."""

import json

import torch

try:
    from gpumem import mark
except ImportError:

    def mark(name: str) -> None:
        """Without gpumem a moment has no name."""


MIB = 1 << 20


def main() -> None:
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    kept = [torch.ones(64 * MIB // 4, device=first)]
    mark("first device")
    kept.append(torch.ones(96 * MIB // 4, device=second))
    mark("second device")
    for number in range(8):
        there = kept[0].to(second)
        kept.append((there[: (number + 1) * MIB] * 2).to(first))
    assert all(float(block.min()) == float(block.max()) == 2.0 for block in kept[2:])
    mark("copied")
    with torch.cuda.device(second):
        product = torch.ones(1024, 1024, device=second) @ torch.ones(1024, 1024, device=second)
    mark("multiplied on the second")
    del there, kept[2::2]
    torch.cuda.empty_cache()
    mark("emptied")
    figures = [
        {
            "allocated_bytes": [torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)],
            "reserved_bytes": [torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)],
        }
        for device in (first, second)
    ]
    print(json.dumps(figures))
    del product, kept


if __name__ == "__main__":
    main()
