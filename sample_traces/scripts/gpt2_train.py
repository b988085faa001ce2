"""A small GPT-2 style language model trained for a few steps with AdamW, in plain torch; prints the final loss."""

import argparse

import torch
from torch import nn
from torch.nn import functional

try:
    from gpumem import step
except ImportError:

    def step() -> None:
        """Without gpumem a step's end is nothing."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attend(self.norm_attention(hidden))
        return hidden + self.contract(functional.gelu(self.expand(self.norm_feed_forward(hidden))))

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, its score matrix in plain sight."""
        batch, length, width = hidden.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.query_key_value(hidden).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.projection((weights @ value).transpose(1, 2).reshape(batch, length, width))


class LanguageModel(nn.Module):
    """Token and position embeddings, blocks, and an output layer that shares the token embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.tokens.weight
        self.apply(initialise)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.output(self.norm(hidden))


def initialise(module: nn.Module) -> None:
    """GPT-2's small normal weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def train(steps: int, depth: int, batch_rows: int, device: str) -> float:
    """The loss after `steps` steps on random tokens that are the same on every run."""
    torch.manual_seed(0)
    vocabulary, length, width = 8192, 256, 384
    model = LanguageModel(vocabulary, length, width, heads=6, depth=depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    corpus = torch.randint(vocabulary, (4, batch_rows, length + 1), generator=torch.Generator().manual_seed(0))
    loss = torch.tensor(0.0)
    for number in range(steps):
        batch = corpus[number % len(corpus)].to(device)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-rows", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    loss = train(options.steps, options.depth, options.batch_rows, options.device)
    print(f"loss after {options.steps} steps: {loss:.6f}")


if __name__ == "__main__":
    main()
