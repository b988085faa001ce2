"""What is hard on an allocator's observer, in one program: compiled code with CUDA graphs, cudnn.benchmark, a captured
graph, a MemPool, several streams and threads. Prints results that are the same on every run.
"""

import threading

import torch
from torch import nn

try:
    from gpumem import step
except ImportError:

    def step() -> None:
        """Without gpumem a step's end is nothing."""


def train_compiled() -> float:
    """The loss after a few steps of a network compiled into CUDA graphs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 16)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).cuda()
    target = torch.zeros(64, 16, device="cuda")
    loss = torch.tensor(0.0)
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        loss = nn.functional.mse_loss(compiled(rows), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step()
    return loss.item()


def convolve_benchmarked() -> tuple[int, ...]:
    """The shape of a convolution whose algorithm cuDNN chose by trying several, workspaces and all."""
    torch.backends.cudnn.benchmark = True
    images = torch.ones(8, 16, 64, 64, device="cuda")
    result = nn.Conv2d(16, 32, 3, padding=1).cuda()(images)
    result.sum().backward()
    return tuple(result.shape)


def replay_graph() -> float:
    """A sum over what a captured graph computes, replayed three times."""
    static = torch.full((1024, 1024), 2.0, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (static @ static).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = (static @ static).relu()
        doubled = product * 2
    for factor in (1.0, 2.0, 3.0):
        static.fill_(factor)
        graph.replay()
    return doubled.sum().item()


def use_pool() -> int:
    """Bytes of tensors in a pool of their own, one of which outlives the block that chose the pool."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
    return kept.numel()


def cross_streams() -> float:
    """A sum over tensors freed on one stream while others still use them, from several threads."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    totals = [0.0] * len(streams)

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number]):
            for round_number in range(20):
                part = torch.full((1 << 18,), float(number), device="cuda")
                for other in streams:
                    part.record_stream(other)
                totals[number] += part[round_number].item()
                del part

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return sum(totals)


def main() -> None:
    print(f"compiled: loss {train_compiled():.4f}")
    print(f"benchmarked convolution: {convolve_benchmarked()}")
    print(f"replayed graph: {replay_graph():.0f}")
    print(f"pool: {use_pool()} bytes")
    print(f"streams: {cross_streams():.0f}")
    torch.cuda.empty_cache()
    torch.ones(1, device="cuda")
    print("done")


if __name__ == "__main__":
    main()
