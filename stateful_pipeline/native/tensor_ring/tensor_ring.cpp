#include "tensor_ring.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace stateful {
namespace {

// Under torch.inference_mode() new tensors are such as nobody may write to once it has ended. The
// buffer outlives any such block, so that it is always made outside of it.
at::Tensor lasting_copy(const at::Tensor& values) {
  const c10::InferenceMode off(false);
  const c10::AutoGradMode no_graph(false);
  return values.detach().clone();
}

at::Tensor lasting_zeros(int64_t rows, int64_t columns) {
  const c10::InferenceMode off(false);
  return at::zeros({rows, columns}, at::kFloat);
}

}  // namespace

TensorRing::TensorRing(int64_t capacity, int64_t features) {
  TORCH_CHECK_VALUE(capacity > 0 && features > 0,
                    "TensorRing: capacity and features must be positive, got ", capacity, " and ",
                    features);
  buffer_ = lasting_zeros(capacity, features);
}

TensorRing::TensorRing(const State& state) {
  const auto& [buffer, head, count] = state;
  TORCH_CHECK_VALUE(buffer.dim() == 2 && buffer.scalar_type() == at::kFloat && buffer.numel() > 0,
                    "TensorRing: the buffer must be float32 [capacity, features], got ",
                    buffer.toString(), " ", buffer.sizes());
  const int64_t capacity = buffer.size(0);
  // Rows are filled from the first on: until the ring is full, the next one is the number of
  // frames.
  const bool fits = count >= 0 && count <= capacity && head >= 0 && head < capacity &&
                    (count == capacity || head == count);
  TORCH_CHECK_VALUE(fits, "TensorRing: no ring of capacity ", capacity, " has ", count,
                    " frames and writes row ", head, " next");
  buffer_ = lasting_copy(buffer);
  head_ = head;
  count_ = count;
}

void TensorRing::push(const at::Tensor& frame) {
  TORCH_CHECK_VALUE(
      frame.dim() == 1 && frame.size(0) == buffer_.size(1) && frame.scalar_type() == at::kFloat,
      "TensorRing: a frame must be float32 [", buffer_.size(1), "], got ", frame.toString(), " ",
      frame.sizes());
  const c10::AutoGradMode no_graph(false);
  buffer_.select(0, head_).copy_(frame.detach());
  head_ = (head_ + 1) % buffer_.size(0);
  count_ = std::min(count_ + 1, buffer_.size(0));
}

at::Tensor TensorRing::mean() const {
  return count_ == 0 ? at::zeros({buffer_.size(1)}, at::kFloat) : window().mean(0);
}

at::Tensor TensorRing::window() const {
  if (count_ < buffer_.size(0)) {
    return buffer_.narrow(0, 0, count_).clone();
  }
  return at::cat({buffer_.narrow(0, head_, count_ - head_), buffer_.narrow(0, 0, head_)});
}

c10::intrusive_ptr<TensorRing> TensorRing::clone() const {
  return c10::make_intrusive<TensorRing>(state());
}

void TensorRing::reset() {
  buffer_ = lasting_zeros(buffer_.size(0), buffer_.size(1));
  head_ = 0;
  count_ = 0;
}

TensorRing::State TensorRing::state() const { return {lasting_copy(buffer_), head_, count_}; }

TORCH_LIBRARY(stateful, m) {
  m.class_<TensorRing>("TensorRing")
      .def(torch::init<int64_t, int64_t>())
      .def("push", &TensorRing::push)
      .def("mean", &TensorRing::mean)
      .def("window", &TensorRing::window)
      .def("size", &TensorRing::size)
      .def("clone", &TensorRing::clone)
      .def("reset", &TensorRing::reset)
      .def_pickle(
          [](const c10::intrusive_ptr<TensorRing>& self) { return self->state(); },
          [](const TensorRing::State& state) { return c10::make_intrusive<TensorRing>(state); });
}

}  // namespace stateful
