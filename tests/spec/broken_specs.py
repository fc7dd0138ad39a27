"""Specs that are wrong, each with the line to blame and a word that the message must hold.

Test files read this list with ``runpy.run_path``, so that it is written once.
"""

from typing import NamedTuple

GOOD = """\
name: broken
source: {python: "stateful_pipeline.zoo.counter:Counter"}
inputs:
  x: {shape: [1, 3]}
"""
"""Four lines that are a spec; most of the broken ones add a fifth."""

BOMB = (
    "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
)  # fmt: skip

MODULE = """\
from torch import nn


class Fussy(nn.Module):
    def __init__(self):
        raise RuntimeError("no luck today")

    def forward(self, x):
        return x
"""


class BrokenSpec(NamedTuple):
    """A spec that must be refused.

    ``line`` is blamed in ``file``, and the message holds ``word``.  ``needs`` is the first thing
    that can tell: "load" (reading it), "check" (looking for files and classes) or "run"
    (constructing the model).  ``files`` are written beside it.
    """

    id: str
    text: str | bytes
    line: int | None
    word: str
    needs: str = "load"
    file: str = "spec.yaml"
    files: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)


def _source(text: str) -> str:
    return GOOD.replace('{python: "stateful_pipeline.zoo.counter:Counter"}', text)


BROKEN = [
    # explicit forms of C++ classes
    BrokenSpec("form-no-class", GOOD + "classes: {Ring: {python: a:B}}\n", 5, "namespace.Class"),
    BrokenSpec("form-empty", GOOD + "classes: {acme.Ring: {}}\n", 5, "exactly one of"),
    BrokenSpec(
        "form-twice", GOOD + "classes: {acme.Ring: {python: a:B, file: b.py:C}}\n", 5, "exactly one"
    ),
    BrokenSpec("form-typo", GOOD + "classes: {acme.Ring: {pyton: a:B}}\n", 5, "python"),
    BrokenSpec(
        "form-no-type",
        GOOD + "classes: {acme.Ring: {file: forms.py:value}}\n",
        5,
        "not a class",
        "run",
        files={"forms.py": "value = 3\n"},
    ),
    # YAML
    BrokenSpec("empty", "", 1, "empty"),
    BrokenSpec("only-comments", "# nothing here\n", 1, "empty"),
    BrokenSpec("bad-yaml", GOOD + "verify: {steps: 3\n", 6, "bad YAML"),
    BrokenSpec("bad-indentation", "name: a\n  source: b\n", 2, "mapping values"),
    BrokenSpec("tab", "name: a\nsource:\n\tpython: a:B\n", 3, "bad YAML"),
    BrokenSpec("not-a-mapping", "- name: a\n", 1, "mapping"),
    BrokenSpec("alias-bomb", BOMB, 5, "aliases"),
    BrokenSpec("self-alias", "name: &a [1, *a]\n", 1, "inside its own anchor"),
    BrokenSpec("unknown-alias", "name: a\nsource: *nowhere\n", 2, "nowhere"),
    BrokenSpec("duplicate-key", GOOD + "name: again\n", 5, "duplicate"),
    BrokenSpec("duplicate-inner-key", GOOD + "verify:\n  steps: 3\n  steps: 4\n", 7, "duplicate"),
    BrokenSpec("merge-key", GOOD + "verify: {<<: {steps: 1}}\n", 5, "merge keys"),
    BrokenSpec("tag", GOOD + "verify: {steps: !!python/int 3}\n", 5, "tag"),
    BrokenSpec("two-documents", GOOD + "---\nname: b\n", 5, "second document"),
    BrokenSpec("number-as-key", GOOD + "states: {0: {init: zeros}}\n", 5, "key must be a string"),
    BrokenSpec("not-utf8", GOOD.encode() + b"# caf\xe9\n", 5, "UTF-8"),
    BrokenSpec("utf16", GOOD.encode("utf-16"), 1, "UTF-16"),
    BrokenSpec("control-character", GOOD + "verify: \x07\n", 5, "U+0007"),
    BrokenSpec("too-large", GOOD + "#" * (1 << 20), None, "larger"),
    BrokenSpec("too-deep", GOOD + "operators: " + "[" * 500 + "]" * 500, 5, "deeper"),
    # keys and types
    BrokenSpec("unknown-key", GOOD + "dynamic_axis: {}\n", 5, "did you mean `dynamic_axes`?"),
    BrokenSpec("unknown-inner-key", GOOD + "verify: {step: 3}\n", 5, "did you mean `steps`?"),
    BrokenSpec("bracketed-key", GOOD + "<value>: 3\n", 5, "unknown key `<value>`"),
    BrokenSpec("wrong-type", GOOD + "verify:\n  steps: many\n", 6, "whole number"),
    BrokenSpec("bool-for-number", GOOD + "verify: {steps: true}\n", 5, "whole number"),
    BrokenSpec("null-section", GOOD + "verify:\n", 5, "nothing"),
    BrokenSpec("missing-name", GOOD.replace("name: broken\n", ""), 1, "`name`"),
    BrokenSpec("missing-inputs", GOOD.partition("inputs")[0], 1, "`inputs`"),
    BrokenSpec("slash-in-name", GOOD.replace("broken", "a/b"), 1, "safe in a path"),
    BrokenSpec("dots-as-name", GOOD.replace("broken", '".."'), 1, "safe in a path"),
    BrokenSpec("schema-of-the-future", GOOD + "schema: 2\n", 5, "expected 1"),
    BrokenSpec("schema-of-true", GOOD + "schema: true\n", 5, "expected 1, found true"),
    BrokenSpec("schema-of-a-fraction", GOOD + "schema: 1.0\n", 5, "expected 1, found 1.0"),
    BrokenSpec("no-inputs", GOOD.partition("inputs")[0] + "inputs: {}\n", 3, "an empty mapping"),
    # source
    BrokenSpec("two-sources", _source('{python: "a:B", file: "a.py:B"}'), 2, "second source"),
    BrokenSpec("no-source", _source("{kwargs: {}}"), 2, "exactly one"),
    BrokenSpec("no-colon", _source("{python: a.b.C}"), 2, "module and a class"),
    BrokenSpec(
        "args-of-a-program", _source("{exported_program: m.pt2, args: [1]}"), 2, "means nothing"
    ),
    BrokenSpec("seed-of-torchscript", _source("{torchscript: m.jit, seed: 1}"), 2, "means nothing"),
    BrokenSpec(
        "weights-of-a-program",
        _source("{exported_program: m.pt2, weights: w.pt}"),
        2,
        "means nothing",
    ),
    # shapes and axes
    BrokenSpec("undeclared-axis", GOOD.replace("[1, 3]", "[batch, 3]"), 4, "not declared"),
    BrokenSpec(
        "misspelt-axis",
        GOOD.replace("[1, 3]", "[bacth, 3]") + "dynamic_axes: {batch: {opt: 2, max: 4}}\n",
        4,
        "did you mean `batch`?",
    ),
    BrokenSpec(
        "undeclared-state-axis", GOOD + "states:\n  h: {shape: [time]}\n", 6, "not declared"
    ),
    BrokenSpec("no-size", GOOD.replace("[1, 3]", "[0, 3]"), 4, "positive"),
    BrokenSpec(
        "min-over-max", GOOD + "dynamic_axes:\n  b: {min: 9, opt: 9, max: 4}\n", 6, "min <= opt"
    ),
    BrokenSpec("min-over-opt", GOOD + "dynamic_axes: {b: {min: 9, opt: 2, max: 9}}\n", 5, "more"),
    BrokenSpec("huge-size", GOOD.replace("[1, 3]", f"[1, {10**21 - 1}]"), 4, "less than 2^31"),
    BrokenSpec(
        "huge-state", GOOD + f"states: {{h: {{shape: [{1 << 31}]}}}}\n", 5, "less than 2^31"
    ),
    BrokenSpec(
        "huge-axis", GOOD + f"dynamic_axes: {{b: {{opt: 4, max: {1 << 31}}}}}\n", 5, "2147483648"
    ),
    BrokenSpec(
        "huge-growth",
        GOOD + f"states: {{k: {{shape: [past], out_shape: [past + {1 << 31}]}}}}\n",
        5,
        "expression",
    ),
    BrokenSpec("huge-steps", GOOD + f"verify: {{steps: {10**20}}}\n", 5, "less than 2147483648"),
    BrokenSpec("huge-reset", GOOD + f"verify: {{reset_every: {10**20}}}\n", 5, "less than"),
    BrokenSpec("huge-benchmark", GOOD + f"benchmark: {{steps: {1 << 31}}}\n", 5, "less than"),
    BrokenSpec("huge-warmup", GOOD + f"benchmark: {{warmup: {1 << 31}}}\n", 5, "less than"),
    BrokenSpec("size-zero", GOOD + "dynamic_axes: {b: {min: 0, opt: 1, max: 1}}\n", 5, "least 1"),
    BrokenSpec(
        "expression",
        GOOD + "states: {k: {shape: [past], out_shape: [past.size]}}\n",
        5,
        "expression",
    ),
    BrokenSpec("growing-without-shape", GOOD + "states: {k: {out_shape: [3]}}\n", 5, "`shape`"),
    # inputs and states
    BrokenSpec("unknown-dtype", GOOD + "  y: {shape: [1], dtype: flaot32}\n", 5, "`float32`?"),
    BrokenSpec("empty-range", GOOD + "  y: {shape: [1], low: 3, high: 3}\n", 5, "less than"),
    BrokenSpec(
        "range-of-integers", GOOD + "  y: {shape: [1], dtype: int64, low: 0.5}\n", 5, "whole"
    ),
    BrokenSpec("value-and-shape", GOOD + "  y: {shape: [1], value: 3}\n", 5, "fixes the argument"),
    BrokenSpec("ignored-without-reason", GOOD + "states: {n: {ignore: true}}\n", 5, "reason"),
    BrokenSpec("unknown-init", GOOD + "states: {h: {init: zero}}\n", 5, "did you mean `zeros`?"),
    # attributes
    BrokenSpec("attribute-without-value", GOOD + "attributes: {a: {}}\n", 5, "`value`"),
    BrokenSpec("attribute-with-a-mapping", GOOD + "attributes: {a: {value: {b: 1}}}\n", 5, "list"),
    BrokenSpec("space-in-attribute", GOOD + 'attributes: {"a b": {value: 1}}\n', 5, "dotted path"),
    BrokenSpec(
        "attribute-and-state",
        GOOD + "attributes: {h: {value: 1}}\nstates: {h: {init: zeros}}\n",
        5,
        "no state",
    ),
    BrokenSpec("unknown-attribute", GOOD + "attributes: {n: {value: 1}}\n", 5, "'n'", "run"),
    # targets and options
    BrokenSpec("no-target", GOOD + "targets: {}\n", 5, "no target"),
    BrokenSpec("unknown-runtime", GOOD + "targets: {t: {runtime: onnx}}\n", 5, "onnxruntime"),
    BrokenSpec("infinite-tolerance", GOOD + "verify: {atol: .inf}\n", 5, "finite"),
    BrokenSpec("nan-tolerance", GOOD + "verify: {rtol: .nan}\n", 5, "finite"),
    BrokenSpec("negative-tolerance", GOOD + "verify: {atol: -1e-5}\n", 5, "at least 0"),
    BrokenSpec("opset", GOOD + "export: {opset: 17}\n", 5, "at least 18"),
    BrokenSpec("no-seeds", GOOD + "verify: {seeds: []}\n", 5, "at least 1"),
    BrokenSpec("tracking-folder", GOOD + "mlflow: {tracking_uri: ./runs}\n", 5, "URI"),
    # other files
    BrokenSpec("extends-nothing", "extends: gone.yaml\n" + GOOD, 1, "no such file"),
    BrokenSpec("extends-itself", "extends: spec.yaml\n" + GOOD, 1, "leads back"),
    BrokenSpec(
        "inherited-fault",
        "extends: base.yaml\n" + GOOD,
        2,
        "whole number",
        file="base.yaml",
        files={"base.yaml": "# shared\nverify: {steps: lots}\n"},
    ),
    # what is named and is not there
    BrokenSpec("missing-file", _source('{file: "gone.py:Model"}'), 2, "no such file", "check"),
    BrokenSpec(
        "missing-weights",
        GOOD.replace("}\ninputs", ", weights: gone.pt}\ninputs"),
        2,
        "no such file",
        "check",
    ),
    BrokenSpec(
        "missing-recording",
        GOOD + "  y:\n    shape: [2]\n    data: {npz: gone.npz, key: y}\n",
        7,
        "no such file",
        "check",
    ),
    BrokenSpec("missing-module", _source('{python: "nowhere_at_all:M"}'), 2, "module", "check"),
    BrokenSpec(
        "missing-submodule",
        _source('{python: "stateful_pipeline.zoo.cuonter:Counter"}'),
        2,
        "stateful_pipeline.zoo.cuonter",
        "check",
    ),
    BrokenSpec(
        "missing-class",
        _source('{python: "stateful_pipeline.zoo.counter:Cuonter"}'),
        2,
        "did you mean `Counter`?",
        "check",
    ),
    BrokenSpec(
        "missing-class-in-file",
        _source('{file: "model.py:Fusy"}'),
        2,
        "did you mean `Fussy`?",
        "check",
        files={"model.py": MODULE},
    ),
    BrokenSpec(
        "file-is-not-python",
        _source('{file: "model.py:Fussy"}'),
        2,
        "not valid Python",
        "check",
        files={"model.py": "class Fussy(:\n"},
    ),
    BrokenSpec(
        "constructor-raises",
        _source('{file: "model.py:Fussy"}'),
        2,
        "no luck today",
        "run",
        files={"model.py": MODULE},
    ),
    BrokenSpec(
        "unknown-argument",
        _source('{python: "stateful_pipeline.zoo.counter:Counter", kwargs: {inti_h: 1.0}}'),
        2,
        "inti_h",
        "run",
    ),
    BrokenSpec(
        "import-raises",
        _source('{file: "model.py:Model"}'),
        2,
        "no_such_package",
        "run",
        files={"model.py": "import no_such_package\n\n\nclass Model:\n    pass\n"},
    ),
]
