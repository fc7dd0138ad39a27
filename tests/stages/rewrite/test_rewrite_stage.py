from __future__ import annotations


def test_the_stage_leaves_a_pure_function_and_says_how_equal_it_is(run_stages) -> None:
    artifacts = run_stages(last="rewrite")
    assert artifacts.functional.states == ("h",)
    assert artifacts.notes["rewrite"]["bitwise"] is True
    assert artifacts.notes["rewrite"]["steps"] >= 8
    code = (artifacts.folder / "rewrite" / "graph.py").read_text()
    assert "h_out" in code
    compile(code, "graph.py", "exec")
