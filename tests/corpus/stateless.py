"""Modules without any state: a control.  Whoever cannot run these cannot be compared.

Loaded by path, as ``corpus_stateless``, after ``corpus_deployed``.
"""

from __future__ import annotations

import torch
from corpus_deployed import Deployed
from torch import Tensor, nn


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))).mean(dim=2)


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)

    def forward(self, token: Tensor) -> Tensor:
        return torch.softmax(self.embed(token), dim=-1)


STATELESS = [
    Deployed("Perceptron", "", Perceptron, lambda g: (torch.randn(2, 3, generator=g),)),
    Deployed("Convolution", "", Convolution, lambda g: (torch.randn(1, 2, 6, generator=g),)),
    Deployed("Lookup", "", Lookup, lambda g: (torch.randint(0, 6, (2, 3), generator=g),)),
]
