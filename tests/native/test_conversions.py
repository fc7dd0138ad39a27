"""What C++ does with objects of both classes: see ``cpp/conversions/main.cpp``."""

from __future__ import annotations

import subprocess

from stateful_pipeline.libraries import BuiltLibrary

CASES = [
    "into_and_out_of_ivalue",
    "wrong_conversions_throw",
    "in_containers",
    "copies_share_nothing",
    "every_method_of_the_stack",
    "every_method_of_the_stack_boxed",
    "every_method_of_the_ring",
    "every_method_of_the_ring_boxed",
    "operator_by_the_dispatcher",
    "module_made_in_cpp_is_saved_and_loaded",
]


def test_every_case_holds_in_a_process_of_cpp(conversions: BuiltLibrary) -> None:
    [program] = conversions.programs
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == CASES
    assert done.returncode == 0
