// A class that nobody else knows, one that cannot be saved, one that forgets what it was, and
// operators.

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>

namespace {

struct Counter : torch::CustomClassHolder {
  explicit Counter(int64_t start) : count(start) {}
  int64_t next() { return ++count; }
  int64_t count;
};

int64_t bump(const c10::intrusive_ptr<Counter>& counter) { return counter->next(); }

struct Unsaved : torch::CustomClassHolder {
  int64_t next() { return ++count; }
  int64_t count = 0;
};

struct Forgetful : torch::CustomClassHolder {
  explicit Forgetful(int64_t start) : count(start) {}
  int64_t next() { return ++count; }
  int64_t count;
};

}  // namespace

TORCH_LIBRARY(counting, m) {
  m.def("twice(Tensor x) -> Tensor", [](const at::Tensor& x) { return x.add(x); });
  m.class_<Counter>("Counter")
      .def(torch::init<int64_t>())
      .def("next", &Counter::next)
      .def_pickle([](const c10::intrusive_ptr<Counter>& self) { return self->count; },
                  [](int64_t count) { return c10::make_intrusive<Counter>(count); });
  m.def("bump", &bump);
  m.def("bump_declared(__torch__.torch.classes.counting.Counter counter) -> int", &bump);
  m.class_<Unsaved>("Unsaved").def(torch::init<>()).def("next", &Unsaved::next);
  m.class_<Forgetful>("Forgetful")
      .def(torch::init<int64_t>())
      .def("next", &Forgetful::next)
      .def_pickle([](const c10::intrusive_ptr<Forgetful>& self) { return self->count; },
                  [](int64_t /*count*/) { return c10::make_intrusive<Forgetful>(0); });
}
