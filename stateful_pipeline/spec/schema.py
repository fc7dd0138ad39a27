"""Keeps ``schema.json`` beside this file current.

``python -m stateful_pipeline.spec.schema`` rewrites it.
"""

from __future__ import annotations

import json
from pathlib import Path

from stateful_pipeline.spec.schema_builder import json_schema

PATH = Path(__file__).with_name("schema.json")
"""The shipped copy."""


def schema_text() -> str:
    """Return what ``schema.json`` must hold."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema_text(), encoding="utf-8")
