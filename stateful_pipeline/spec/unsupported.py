"""Keys of the spec whose capability does not exist yet.

They are refused with "not supported yet", never ignored, and the JSON Schema refuses them too.  To
add a capability, remove its line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stateful_pipeline.spec.tree import Node, Parts, walk

KEYS: tuple[Parts, ...] = (
    ("operators",),
    ("targets", "*", "plugins"),
    ("mlflow", "register"),
    ("mlflow", "alias"),
)
"""Keys that are refused where they say anything; ``"*"`` stands for any key."""


@dataclass(frozen=True)
class Unsupported:
    """A capability that was asked for and does not exist yet.

    ``parts`` is the key; ``covers`` the part of the spec about which nothing more can be said.
    """

    parts: Parts
    what: str
    covers: Parts


def unsupported(root: Node) -> Iterator[Unsupported]:
    """Yield what the tree ``root`` asks for and does not exist yet."""
    for pattern in KEYS:
        for parts, node in walk(root, pattern):
            if node.value not in (None, {}, []):
                yield Unsupported(parts, f"`{parts[-1]}`", parts)
