"""A cache that grows with every request until the memory limit is reached: prints PyTorch's error and exits 1."""

import sys

import torch

try:
    from gpumem import step
except ImportError:

    def step() -> None:
        """Without gpumem a step's end is nothing."""


MiB = 1 << 20
LIMIT_BYTES = 1024 * MiB


def encode(batch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One request's key and value states, computed through a temporary three times as large."""
    hidden = (batch @ weight).relu()
    return hidden[:, : weight.shape[0]].clone()


def serve(cache: list[torch.Tensor]) -> None:
    """Answers requests of growing length and keeps every state."""
    weight = torch.zeros(1024, 3072, device="cuda")
    for request in range(1000):
        tokens = 1024 + 512 * request
        cache.append(encode(torch.zeros(tokens, 1024, device="cuda"), weight))
        step()


def main() -> int:
    capacity_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / capacity_bytes)
    cache: list[torch.Tensor] = []
    try:
        serve(cache)
    except torch.cuda.OutOfMemoryError as error:
        first_sentences = ". ".join(str(error).split(". ")[:2])
        print(f"after {len(cache)} requests: {first_sentences}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
