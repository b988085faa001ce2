"""Nine lines that move one GiB at a time between CPU and GPU: what is allocated, reserved, and seen from outside.

Run it bare or under `gpumem run`; with gpumem installed each step sets a mark.
"""

import torch

try:
    from gpumem import mark
except ImportError:

    def mark(name: str) -> None:
        """Without gpumem a mark is nothing."""


GiB = 1 << 30
MiB = 1 << 20


def show(step: str) -> None:
    """One line: the step, and what PyTorch's allocator says after it."""
    torch.cuda.synchronize()
    mark(step)
    allocated_mib = torch.cuda.memory_allocated() / MiB
    reserved_mib = torch.cuda.memory_reserved() / MiB
    print(f"{step:<28} allocated {allocated_mib:6.0f} MiB  reserved {reserved_mib:6.0f} MiB")


def zeros(device: str) -> torch.Tensor:
    """A tensor of one GiB."""
    return torch.zeros(GiB // 4, dtype=torch.float32, device=device)


def main() -> None:
    torch.cuda.init()
    show("cuda started")
    tiny = torch.zeros(1, device="cuda")
    show("tiny tensor")
    del tiny
    a = zeros("cuda")
    show("1 a on the GPU")
    b = zeros("cuda")
    show("2 b on the GPU")
    b = b.to("cpu")
    show("3 b to the CPU")
    c = zeros("cuda")
    show("4 c on the GPU")
    c = zeros("cuda")
    show("5 c on the GPU again")
    d = zeros("cuda")
    show("6 d on the GPU")
    del d
    show("7 d deleted")
    e = zeros("cpu")
    show("8 e on the CPU")
    e = e.to("cuda")
    show("9 e to the GPU")
    assert a.numel() == b.numel() == c.numel() == e.numel()


if __name__ == "__main__":
    main()
