"""The reference models that ``configs/`` point at, with their data and the scripts that made it.

Each is an ``nn.Module`` as a user would write it, which knows nothing of this package:
:mod:`.counter`, :mod:`.lstm`, :mod:`.gru_stack`, :mod:`.kv_decoder`, :mod:`.window_attention`,
:mod:`.causal_conv`, :mod:`.running_norm` and :mod:`.gate`.

``torch.jit.script`` takes a type as the annotation of a buffer, and no string.  A model that is to
be scripted therefore does without ``from __future__ import annotations``.
"""
