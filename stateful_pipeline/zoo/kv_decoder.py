"""A decoder-only transformer that keeps the keys and values of its past in buffers.

The same ``forward`` takes a prompt of any length (*prefill*) and then token by token (*decode*).
Each layer's cache has room for ``capacity`` tokens; the new ones are written at
``position .. position + time`` with ``index_copy_``, and a token sees the entries up to its own
position.  Cutting a sequence anywhere gives the same logits.

The layers are the usual ones: pre-norm (R. Xiong et al., *On Layer Normalization in the Transformer
Architecture*, 2020), attention and feed-forward of A. Vaswani et al., *Attention Is All You Need*,
2017, rotary positions (J. Su et al., *RoFormer*, 2021), GELU, and a head that shares the embedding
(O. Press and L. Wolf, *Using the Output Embedding to Improve Language Models*, 2017).  The weights
are random: train them before use.

A full cache is an error.  What lies beyond ``capacity`` has no place to be written to:
``index_copy_`` raises in eager PyTorch, and so does the scatter that it becomes in an engine.
Nothing that a later call reads is changed by such a call, so that one may still decode up to
``capacity``; to go on after that, ``reset_states`` and feed the text that is to be remembered.
"""

import torch
from torch import nn


class CachedAttention(nn.Module):
    """Causal attention whose keys and values stay in buffers between calls.

    The states are ``keys`` and ``values``, each float32 ``[batch, heads, capacity, head_dim]``.
    They are made for one stream, and left out of the ``state_dict``.

    Args:
        width: Numbers that describe a token.
        heads: Heads, each of ``width / heads`` numbers.
        capacity: Tokens that the cache has room for.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, width: int, heads: int, capacity: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        empty = torch.zeros(1, heads, capacity, self.head_dim)
        self.register_buffer("keys", empty, persistent=False)
        self.register_buffer("values", empty.clone(), persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Write the new tokens into the cache, and attend to what each of them may see.

        Args:
            x: The tokens, float32 ``[batch, time, width]``.
            positions: Where they stand, int64 ``[time]``.
            rotation: Cosine and sine of their angles, each ``[time, head_dim / 2]``.
            visible: Which entries of the cache each may see, bool ``[time, capacity]``.

        Returns:
            ``[batch, time, width]``.
        """
        query, key, value = self.project(x).chunk(3, dim=2)
        query = rotate(self.split(query), rotation)
        self.keys.index_copy_(2, positions, rotate(self.split(key), rotation))
        self.values.index_copy_(2, positions, self.split(value))
        scores = torch.matmul(query, self.keys.transpose(2, 3)) * self.scale
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=3)
        mixed = torch.matmul(weights, self.values)
        y: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[batch, time, width]`` as ``[batch, heads, time, head_dim]``."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def reset_states(self) -> None:
        """Empty the cache, for as many streams as there are."""
        self.keys = torch.zeros_like(self.keys)
        self.values = torch.zeros_like(self.values)


class Block(nn.Module):
    """One layer: attention and feed-forward, each on normed input and added to it.

    Args:
        width: Numbers that describe a token.
        heads: Heads of the attention.
        capacity: Tokens that the cache has room for.
    """

    def __init__(self, width: int, heads: int, capacity: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = CachedAttention(width, heads, capacity)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Return ``[batch, time, width]``; the arguments are those of the attention."""
        x = x + self.attention(self.norm(x), positions, rotation, visible)
        y: torch.Tensor = x + self.feed_forward(x)
        return y


class KVDecoder(nn.Module):
    """A language model over tokens, with a cache of fixed capacity.

    The states are ``position`` (int64, 0-d), the tokens so far, and in each layer
    ``blocks.0.attention.keys`` and ``.values`` .. (float32 ``[batch, heads, capacity, head_dim]``).
    They are made for one stream (``batch`` 1); for more, expand the caches along that axis before
    the first call.  All streams of a batch stand at the same position.

    Args:
        vocabulary: Tokens there are; 256 for bytes.
        width: Numbers that describe a token, a multiple of twice ``heads``.
        heads: Heads of each layer's attention.
        layers: Layers.
        capacity: Tokens from one reset to the next, at most.
    """

    position: torch.Tensor
    frequencies: torch.Tensor
    slots: torch.Tensor

    def __init__(
        self,
        vocabulary: int = 256,
        width: int = 64,
        heads: int = 4,
        layers: int = 4,
        capacity: int = 256,
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width {width} is no multiple of twice the {heads} heads")
        self.embedding = nn.Embedding(vocabulary, width)
        # It is the head, too: logits are of order one with this spread.
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads, capacity) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        half = torch.arange(width // heads // 2)
        frequencies = 10_000.0 ** (-half / len(half))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("slots", torch.arange(capacity), persistent=False)
        self.register_buffer("position", torch.tensor(0), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Take the next tokens of each stream.

        Args:
            tokens: int64 ``[batch, time]``, each below ``vocabulary``.

        Returns:
            The logits of the token after each of them, float32 ``[batch, time, vocabulary]``.

        Raises:
            IndexError: The cache is full: ``position + time`` is more than ``capacity``.
        """
        time = tokens.shape[1]
        positions = self.position + torch.arange(time, device=tokens.device)
        angles = positions.unsqueeze(1) * self.frequencies
        rotation = (angles.cos(), angles.sin())
        visible = self.slots <= positions.unsqueeze(1)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, rotation, visible)
        self.position += time
        return nn.functional.linear(self.norm(x), self.embedding.weight)

    def reset_states(self) -> None:
        """Begin a new text, for as many streams as there are."""
        self.position = torch.zeros_like(self.position)
        for layer in self.modules():
            if isinstance(layer, CachedAttention):
                layer.reset_states()


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn each pair of numbers of a head, one of its first half and one of its second.

    Args:
        x: ``[batch, heads, time, head_dim]``.
        rotation: Cosine and sine of the angles, each ``[time, head_dim / 2]``.

    Returns:
        ``[batch, heads, time, head_dim]``.
    """
    cos, sin = rotation
    a, b = x.chunk(2, dim=3)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=3)
