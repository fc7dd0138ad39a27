"""An editor that is typed into key by key, whose words lie in a stack of strings in C++.

Strings have no place in ONNX.  The class ``my_classes.MyStackClass`` comes from the library that
``stateful_pipeline/native/stack`` builds, which has to be loaded before an editor is made.
"""

from __future__ import annotations

import torch
from torch import nn

KEYS = 30
"""The keys: 26 letters from ``a`` on, then these."""
SPACE, BACKSPACE, COPY, PASTE = 26, 27, 28, 29


class WordStack(nn.Module):
    """Take a key, and return the word on top with the number of words.

    A letter is added to the word on top.  Space begins a new word.  Backspace takes a letter away,
    or a word without letters; the last word stays.  Copy puts the word on top on the clipboard, and
    paste puts all that is there on top of the stack.

    The state is ``words`` and ``clipboard``, stacks of strings, and ``depth``, the number of words.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.classes.my_classes.MyStackClass([""])
        self.clipboard = torch.classes.my_classes.MyStackClass(["word"])
        self.depth = 1

    def forward(self, key: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take one key.

        Args:
            key: Its number, from 0 to :data:`KEYS` - 1; int64, 0-d or ``[1]``.

        Returns:
            ``word``, the characters' codes, int64 ``[length]``, and ``depth``, int64, 0-d.
        """
        number = int(key)
        if number < 26:
            self.words.push(self.words.pop() + chr(ord("a") + number))
        elif number == 26:
            self.words.push("")
            self.depth += 1
        elif number == 27:
            self._take_back()
        elif number == 28:
            self.clipboard = torch.classes.my_classes.MyStackClass([self.words.top()])
        else:
            self.words.merge(self.clipboard.clone())
            self.depth += 1
        word = self.words.top()
        codes = torch.tensor([ord(word[i]) for i in range(len(word))], dtype=torch.int64)
        return {"word": codes, "depth": torch.tensor(self.depth)}

    def _take_back(self) -> None:
        word = self.words.pop()
        if len(word) > 0:
            self.words.push(word[: len(word) - 1])
        elif self.depth > 1:
            self.depth -= 1
        else:
            self.words.push("")

    def reset_states(self) -> None:
        """Start again: one word without letters, and the clipboard as it was."""
        self.words = torch.classes.my_classes.MyStackClass([""])
        self.clipboard = torch.classes.my_classes.MyStackClass(["word"])
        self.depth = 1
