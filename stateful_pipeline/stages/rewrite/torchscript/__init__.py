"""Rewrites a TorchScript graph so that it is a pure function of inputs and states.

Method: the graph is interpreted once, and a new graph is written on the way.  What a value of the
old graph *is* (a tensor object, a view of one, a list, a number, a module) is an abstract value
(:mod:`.values`); what a tensor object holds at the moment is kept per block (:mod:`.scope`).
Loads and stores of attributes move pointers, in-place operators and writes through views change
what an object holds, and no operator of the new graph writes to anything.  Where control flow
joins (:mod:`.branches`, :mod:`.loops`), whatever changed becomes an output of the ``prim::If`` or
a value carried by the ``prim::Loop``: mem2reg over structured control flow (Cytron et al.,
"Efficiently computing static single assignment form", TOPLAS 1991), without its dominance
frontiers, which structured blocks do not need.  Sizes and dtypes are inferred on the way by
PyTorch's fake tensors (:mod:`.sizes`), so that tests of ranks, dtypes and flags fold away.
"""
