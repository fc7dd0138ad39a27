// The last N frames of a stream, in a ring: state that is a tensor and two integers.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <tuple>

namespace stateful {

// Holds the last `capacity` frames of `features` float32 values each, on the CPU.
//
// The ring keeps no graph: `push` copies the values of a frame, and no gradient flows back through
// what is read later. A stream has no end; a graph through its frames would grow for ever.
//
// What is read is a copy: later frames do not change it. Not for several threads at once.
struct TensorRing : torch::CustomClassHolder {
  // Buffer [capacity, features], the row that is written next, and how many rows hold one.
  using State = std::tuple<at::Tensor, int64_t, int64_t>;

  // Throws c10::Error unless both numbers are positive.
  TensorRing(int64_t capacity, int64_t features);

  // Throws c10::Error if the parts of `state` do not fit one another.
  explicit TensorRing(const State& state);

  // Adds `frame`, float32 of shape [features], in place of the oldest one if the ring is full.
  void push(const at::Tensor& frame);

  // The mean of the frames held, [features]; zeros where there are none.
  at::Tensor mean() const;

  // The frames held, oldest first: [size, features].
  at::Tensor window() const;

  int64_t size() const { return count_; }

  // A ring with the same frames that shares nothing with this one.
  c10::intrusive_ptr<TensorRing> clone() const;

  // Forgets all frames.
  void reset();

  State state() const;

 private:
  at::Tensor buffer_;
  int64_t head_ = 0;
  int64_t count_ = 0;
};

}  // namespace stateful
