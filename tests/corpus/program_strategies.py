"""Hypothesis strategies of random programs, and of programs that between them leave nothing out.

``directed(j)`` for ``j < DIRECTED`` has, over all ``j``, each definite kind of store in each kind
of block where it can be; ``programs`` nests anything in anything.

Loaded by path, as ``corpus_program_strategies``, after the two modules that it imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import corpus_program_stores as stores
from corpus_programs import (
    BLOCKS,
    CLOCK_CONDITIONS,
    CONDITIONS,
    DEPTH,
    FIXED_HEADS,
    HEADS,
    INNER_CONDITIONS,
    LOOP_CONDITIONS,
    Block,
    If,
    Loop,
    Pair,
    Program,
    Store,
)
from hypothesis import strategies as st


def _turned(options: Sequence[Any], turn: int) -> st.SearchStrategy[Any]:
    """Return a choice of ``options`` whose simplest is another one for each ``turn``."""
    turn %= len(options)
    return st.sampled_from([*options[turn:], *options[:turn]])


def store_of(kinds: Sequence[str], turn: int = 0) -> st.SearchStrategy[Store]:
    """Return a strategy of stores of one of ``kinds``."""
    return st.builds(
        Store,
        kind=st.sampled_from(kinds),
        target=_turned(range(2), turn),
        operand=_turned(range(6), turn // 2),
        k=_turned(range(3), turn // 3),
        view=_turned(range(len(stores.VIEWS_OF_VIEWS)), 37 * turn),
        condition=_turned(CONDITIONS, turn),
    )


def blocks(kinds: Sequence[str], depth: int, loops: int = 0) -> st.SearchStrategy[Block]:
    """Return a strategy of blocks with up to ``depth`` levels of branches and loops in them."""
    node = store_of(kinds)
    if depth == 0:
        return st.lists(node, min_size=1, max_size=3).map(tuple)
    inner, looped = blocks(kinds, depth - 1, loops), blocks(kinds, depth - 1, loops + 1)
    branch = st.builds(
        If,
        condition=st.sampled_from((*CONDITIONS, *(LOOP_CONDITIONS if loops else ()))),
        then=inner,
        other=st.just(()) | inner,
        exit=st.sampled_from(("", "", "return", *(("break", "continue") if loops else ()))),
    )
    loop = st.builds(
        Loop, head=st.sampled_from(tuple(HEADS)), body=looped, operand=st.integers(0, 5)
    )
    least, most = (2, 6) if depth == DEPTH else (1, 3)
    return st.lists(node | branch | loop, min_size=least, max_size=most).map(tuple)


def programs(kinds: Sequence[str] = tuple(stores.DEFINITE)) -> st.SearchStrategy[Program]:
    """Return a strategy of programs whose stores are of ``kinds``, nested up to three levels."""
    return st.builds(Program, main=blocks(kinds, DEPTH), sub=blocks(kinds, 1))


def _kind_in(block: str, number: int) -> str:
    """Return the kind of store that program ``number`` of a skeleton has in ``block``."""
    kinds = tuple(stores.DEFINITE)
    kind = kinds[(number + 11 * BLOCKS.index(block)) % len(kinds)]
    return "reassign" if (kind, block) in stores.INFEASIBLE else kind


_SKELETONS = (BLOCKS[:8], BLOCKS[8:])
DIRECTED = len(_SKELETONS) * len(stores.DEFINITE)
"""How many ``directed`` programs it takes to have each pair that can be."""


def directed(number: int) -> st.SearchStrategy[Program]:
    """Return a strategy of programs with the pairs ``pairs_of(number)``, each executed."""
    turn, skeleton = divmod(number, len(_SKELETONS))
    kinds = {block: (_kind_in(block, turn),) for block in _SKELETONS[skeleton]}
    return (_branching, _looping)[skeleton](kinds, turn)


def ambiguous(kind: str) -> st.SearchStrategy[Program]:
    """Return a strategy of programs with the ambiguous ``kind`` in each kind of block."""
    kinds = dict.fromkeys(BLOCKS, (kind,))
    branching, looping = _branching(kinds, 0), _looping(kinds, 0)
    return st.builds(
        lambda a, b: Program((*a.main[:-1], *b.main, a.main[-1]), a.sub), branching, looping
    )


def pairs_of(number: int) -> set[Pair]:
    """Return the pairs that ``directed(number)`` is there for."""
    turn, skeleton = divmod(number, len(_SKELETONS))
    return {(_kind_in(block, turn), block) for block in _SKELETONS[skeleton]}


def feasible() -> set[Pair]:
    """Return each pair of a kind of store that is not ambiguous and a kind of block."""
    every = {(kind, block) for kind in stores.DEFINITE for block in BLOCKS}
    return every - stores.INFEASIBLE.keys()


def _branching(kinds: dict[str, tuple[str, ...]], turn: int) -> st.SearchStrategy[Program]:
    """Return programs with a statement in each block of the first skeleton."""

    def make(conditions: Sequence[str], inner: str, *made: Store) -> Program:
        s = dict(zip(BLOCKS[:8], made, strict=True))
        loop_in_if = Loop("for_const", (s["loop_in_if"],))
        nested = (s["if"], If(inner, (s["nested_if"],)))
        main = (
            s["top"],
            If(conditions[0], nested, (s["else"],)),
            Loop("for_size", (s["for_size"],)),
            If(conditions[1], (loop_in_if,)),
            If(conditions[2], (s["return"],), exit="return"),
        )
        return Program(main, (s["submodule"],))

    conditions = st.tuples(*(_turned(CLOCK_CONDITIONS, turn + i) for i in range(3)))
    made = [store_of(kinds[block], turn + i) for i, block in enumerate(BLOCKS[:8])]
    return st.builds(make, conditions, _turned(INNER_CONDITIONS, turn), *made)


def _looping(kinds: dict[str, tuple[str, ...]], turn: int) -> st.SearchStrategy[Program]:
    """Return programs with a statement in each block of the second skeleton."""

    def make(conditions: Sequence[str], heads: Sequence[str], *made: Store) -> Program:
        s = dict(zip(BLOCKS[8:], made, strict=True))
        loop = (
            If(conditions[0], (s["continue"],), exit="continue"),
            s["for_const"],
            If(conditions[1], (s["if_in_loop"],)),
            Loop(heads[0], (s["loop_in_loop"],)),
        )
        trips = (
            s["while"],
            If(LOOP_CONDITIONS[0], (s["break"],), exit="break"),
        )
        until = If(conditions[2], (s["return_in_loop"],), exit="return")
        return Program(
            (
                Loop("for_const", loop),
                Loop(heads[1], trips),
                Loop("for_data", (s["for_data"], until)),
            ),
            (),
        )

    conditions = st.tuples(
        st.just(LOOP_CONDITIONS[0]),
        *(_turned(CLOCK_CONDITIONS, turn + i) for i in range(2)),
    )
    heads = st.tuples(_turned(tuple(FIXED_HEADS), turn), _turned(("while", "while_tensor"), turn))
    made = [store_of(kinds[block], turn + i) for i, block in enumerate(BLOCKS[8:])]
    return st.builds(make, conditions, heads, *made)
