"""The trees that TorchScript's compiler gets in the place of those that it refuses."""

import ast
import inspect
import textwrap

import pytest

from stateful_pipeline.model.seen_types import SeenTypes
from stateful_pipeline.model.source_expressions import NO_NAMING, Naming
from stateful_pipeline.model.source_forms import rewrite_function


def changed(function, naming: Naming = NO_NAMING, seen: SeenTypes | None = None) -> str:
    """Return the body of ``function`` after the change, as text."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    types = seen or SeenTypes()
    start = (first - 1, 0)
    rewrite_function(tree, function, types, start=start, has_types=False, naming=naming)
    assert all(hasattr(node, "lineno") for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return "\n".join(map(ast.unparse, tree.body))


def floor(m, n):
    m[0] //= n


def test_floor_division_is_decided_by_type():
    assert changed(floor).splitlines() == [
        "if isinstance(m[0], Tensor):",
        "    m[0] = m[0].floor_divide_(n)",
        "else:",
        "    m[0] = m[0] // n",
    ]


def floor_of_a_call(m, n):
    m.last()[0] //= n


def star_first(x, rest):
    return [*rest, x, x, *rest]


def named_late(x, f):
    x += (n := f(x))
    return x + (m := f(n)) + m


def own_sum(xs, sum):  # noqa: A002 - what the test is about
    return sum(x for x in xs)


def plain_tuple(pair):
    a, b = 1, pair
    return tuple(pair), a, b


@pytest.mark.parametrize("function", [floor_of_a_call, named_late, own_sum, plain_tuple])
def test_what_would_mean_something_else_stays_as_it_is(function):
    lines = inspect.getsourcelines(function)[0][1:]
    assert changed(function) == ast.unparse(ast.parse(textwrap.dedent("".join(lines))))


def test_starred_items_are_joined_in_order():
    assert changed(star_first) == "return list(rest) + [x, x] + list(rest)"


def named_first(x, f):
    if (n := f(x)) > 0:
        return n
    elif (k := f(n)).any():
        return k
    return None


def test_a_name_that_is_given_first_is_assigned_before():
    assert changed(named_first).splitlines() == [
        "n = f(x)",
        "if n > 0:",
        "    return n",
        "else:",
        "    k = f(n)",
        "    if k.any():",
        "        return k",
        "return None",
    ]


def reads_created(self, x):
    if not hasattr(self, "h"):
        self.h = x
    self.h += x
    return self.h * 2, self.h is None, hasattr(self, "other"), getattr(self, "h", None)


def test_attributes_of_the_first_call_are_none_before_it():
    names = frozenset({"h"})
    assert changed(reads_created, Naming(created=names, optional=names)).splitlines() == [
        "if not self.h is not None:",
        "    self.h = x",
        f"_held_{4}_4 = _present(self.h)",
        "_held_4_4 += x",
        "self.h = _held_4_4",
        "return (_present(self.h) * 2, self.h is None, hasattr(self, 'other'), self.h)",
    ]


def of_a_deque(q, x):
    q.appendleft(x)
    q.rotate(-2)
    q.rotate(x)
    return q.popleft()


def test_a_deque_is_a_list_where_the_module_has_one():
    assert changed(of_a_deque, Naming(deques=True)).splitlines() == [
        "q.insert(0, x)",
        "q.append(q.pop(0))",
        "q.append(q.pop(0))",
        "q.rotate(x)",
        "return q.pop(0)",
    ]
    assert "popleft" in changed(of_a_deque)
