"""A model's file is read as it is now."""

import os

from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.script.subject import prepare


def test_a_file_that_changes_within_a_second_is_read_again(project, monkeypatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    spec = project.spec()
    os.utime(project.folder / "model.py", (1_700_000_000, 1_700_000_000))
    before = prepare(load_spec(spec)).module
    text = (project.folder / "model.py").read_text()
    assert "self.h" in text
    project.spec(model=text.replace("self.h", "self.g").replace('"h"', '"g"'))
    os.utime(project.folder / "model.py", (1_700_000_000, 1_700_000_000))
    after = prepare(load_spec(spec)).module
    assert dict(before.named_buffers()).keys() != dict(after.named_buffers()).keys()
