"""The facts about ONNX Runtime that the runner's buffers rest on."""

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from stateful_pipeline.contract import DTYPES, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import ONNX_TYPES, Engine


@pytest.fixture
def doubled(save_model):
    return Engine(save_model("g (float[n] x) => (float[n] y) { y = Add(x, x) }", None), "cpu", 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_shares_the_memory_of_its_array(doubled, dtype):
    assert ONNX_TYPES[dtype] == getattr(onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}
                                        .get(dtype, dtype.upper()))  # fmt: skip
    for shape in ((2, 3), (), (2, 0)):
        array = np.ones(shape, numpy_dtype(dtype))
        value = doubled.value(array, dtype)
        assert tuple(value.shape()) == shape
        assert value.element_type() == ONNX_TYPES[dtype]
        assert array.size == 0 or value.data_ptr() == array.ctypes.data


@pytest.mark.parametrize("size", [2, 4, 0])
def test_an_output_bound_with_another_size_fails_and_writes_nothing_past_its_end(doubled, size):
    around = np.full(16, 9, np.float32)
    binding = doubled.binding()
    binding.bind_input("x", doubled.value(np.ones(3, np.float32), "float32"))
    binding.bind_output("y", doubled.value(around[:size], "float32"))
    with pytest.raises(Exception, match="shape"):
        binding.run()
    assert (around[size:] == 9).all()


def test_an_output_that_is_an_input_is_not_written_and_that_is_noticed(tmp_path):
    info = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = oh.make_graph([oh.make_node("Neg", ["x"], ["y"])], "g", [info], [y, info])
    opset = oh.make_opsetid("", 20)
    onnx.save(oh.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "m.onnx")
    engine = Engine(tmp_path / "m.onnx", "cpu", 1)
    binding = engine.binding()
    binding.bind_input("x", engine.value(np.ones(2, np.float32), "float32"))
    binding.bind_output("y", engine.value(np.zeros(2, np.float32), "float32"))
    binding.bind_output("x", engine.value(np.zeros(2, np.float32), "float32"))
    with pytest.raises(ContractError, match="gave output 'x' in memory of its own"):
        binding.run()
