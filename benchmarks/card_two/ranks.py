"""One rank of a data-parallel program over NCCL, with a mark at each of its stages; started by torchrun."""

import os

import torch
import torch.distributed as dist

try:
    from gpumem import mark
except ImportError:

    def mark(name: str) -> None:
        """Without gpumem a moment has no name."""


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    torch.zeros(1, device=device)
    mark("cuda started")
    dist.init_process_group("nccl", device_id=device)
    mark("group made")
    share = torch.ones(1 << 20, device=device)
    dist.all_reduce(share)
    torch.cuda.synchronize()
    mark("first all_reduce")
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(256 * (rank + 1), 2048, device=device)).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    mark("trained")
    dist.destroy_process_group()
    mark("group destroyed")


if __name__ == "__main__":
    main()
