"""From a file, what it extends and what the shell overrides, to a validated spec."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from stateful_pipeline.errors import Place, SpecError
from stateful_pipeline.spec import keypath
from stateful_pipeline.spec.faults import raise_together, show
from stateful_pipeline.spec.messages import explain, faults_of, keys_there
from stateful_pipeline.spec.model import Origin, Spec
from stateful_pipeline.spec.paths import resolve_paths
from stateful_pipeline.spec.relations import broken_relations
from stateful_pipeline.spec.tree import Node, Parts, assign, merge
from stateful_pipeline.spec.unsupported import unsupported
from stateful_pipeline.spec.yaml12 import read_file, read_text


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Read, merge and validate the spec at ``path``.

    Nothing that it names is opened, imported or constructed; :func:`check_spec` looks for that.

    Args:
        path: The YAML file.  Errors name it as it is given here.
        overrides: ``KEY=VALUE`` each, as after ``--set``: the key path of one value, and the value
            in YAML.  Mappings are merged, null deletes, relative paths are relative to the working
            directory.

    Returns:
        The spec, with absolute paths.

    Raises:
        SpecError: Anything is wrong; ``others`` has what else is.
    """
    path = Path(path)
    tree = _with_extends(path, str(path), ())
    for override in overrides:
        tree = _with_override(tree, override)
    tree, relative = resolve_paths(tree)
    spec = _validate(tree, str(path))
    absolute = Path(os.path.normpath(Path.cwd() / path))
    spec._origin = Origin(absolute, str(path), tree, relative)
    return spec


def _with_extends(path: Path, name: str, above: tuple[Path, ...]) -> Node:
    tree = read_file(path, name)
    if not isinstance(tree.value, dict):
        raise SpecError(
            f"expected a mapping, found {show(tree.plain())}",
            place=tree.place,
            hint="a spec begins like `name: my_model`",
        )
    kind = tree.value.get("kind")
    if kind is not None and kind.value == "job":
        raise SpecError(
            "this is a job, not a spec",
            place=kind.where,
            key="kind",
            hint="`pipeline run` takes jobs; other commands take one of its specs",
        )
    key = tree.value.get("extends")
    if key is None:
        return tree
    if not isinstance(key.value, str) or not key.value:
        found = show(key.plain())
        raise SpecError(f"expected a path, found {found}", place=key.where, key="extends")
    base_path = path.parent / key.value
    chain = (*above, path.resolve())
    if base_path.resolve() in chain:
        raise SpecError(
            f"`extends: {key.value}` leads back to this file",
            place=key.where,
            key="extends",
            hint="a file cannot extend itself, not through others either",
        )
    if not base_path.is_file():
        raise SpecError(
            f"`extends: {key.value}`: no such file ({os.path.normpath(base_path)})",
            place=key.where,
            key="extends",
            hint="the path is relative to this file",
        )
    base = _with_extends(base_path, os.path.normpath(base_path), chain)
    own = {name: node for name, node in tree.value.items() if name != "extends"}
    return merge(base, replace(tree, value=own))


def _with_override(tree: Node, override: str) -> Node:
    label = f"--set {override}"
    parts, rest = keypath.parse_prefix(override)
    if not parts or not rest.startswith("="):
        raise SpecError(
            "expected KEY=VALUE",
            place=Place(label),
            hint="""such as targets.cpu.threads=2 or 'states["cells.0.h"].init=zeros'""",
        )
    key = keypath.render(parts)
    if parts[0] == "extends":
        raise SpecError("`extends` belongs into a file", place=Place(label), key=key)
    text = rest[1:]
    if text.strip():
        value = read_text(text, label, Path.cwd(), positions=False)
    else:
        value = Node(None, Place(label), Path.cwd())
    try:
        return assign(tree, parts, value)
    except LookupError as error:
        raise _no_way(tree, parts, int(error.args[0]), label) from error


def _no_way(tree: Node, parts: Parts, followed: int, label: str) -> SpecError:
    node, _ = tree.find(parts[:followed])
    where = keypath.render(parts[:followed])
    step = parts[followed]
    wanted = f"index {step}" if isinstance(step, int) else f"key `{step}`"
    return SpecError(
        f"`{where}` is {show(node.plain())} ({node.where}), which has no {wanted}",
        place=Place(label),
        key=keypath.render(parts),
    )


def _validate(tree: Node, name: str) -> Spec:
    """Return the spec that ``tree`` is; raise all faults together."""
    refused = list(unsupported(tree))
    faults = [
        SpecError(
            f"{item.what} is not supported yet",
            place=tree.find(item.parts)[0].where,
            key=keypath.render(item.parts),
        )
        for item in refused
    ]
    data = tree.plain()
    broken = broken_relations(data)
    spec = None
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        for detail in faults_of(error):
            keys = keys_there(detail, tree)
            covered = any(keys[: len(item.covers)] == item.covers for item in refused)
            if not covered and not (broken and detail["loc"] == ()):
                faults.append(explain(detail, tree, Spec))
    faults += [
        SpecError(
            f"{keypath.render(item.parts)}: {item.message}",
            hint=item.hint,
            place=tree.find(item.parts)[0].where,
            key=keypath.render(item.parts),
        )
        for item in broken
        if not any(item.parts[: len(other.covers)] == other.covers for other in refused)
    ]
    if faults or spec is None:
        raise_together(faults, name)
    return spec
