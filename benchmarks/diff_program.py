"""A small training program, which benchmarks/diff_changes.py edits, records and compares."""

import torch
from torch import nn

BATCH = 64
CACHED_BLOCKS = 1
WIDTH = 2048


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x


def build_cache():
    return [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(CACHED_BLOCKS)]


def train(model, optimizer, steps):
    history = []
    for _ in range(steps):
        batch = torch.randn(BATCH, 64, WIDTH, device="cuda")
        features = model(batch)
        loss = features.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append(loss.item())
    return history


def main():
    torch.manual_seed(0)
    cache = build_cache()
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print(len(cache), train(model, optimizer, 5))


if __name__ == "__main__":
    main()
