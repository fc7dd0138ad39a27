// Classes by which a module's parts share something: some pickle the very thing, some a copy.

#include <torch/custom_class.h>
#include <ATen/ATen.h>

#include <cstdint>
#include <tuple>
#include <utility>

namespace {

template <class T>
using Pointer = c10::intrusive_ptr<T>;

// What several others add to.
struct Total : torch::CustomClassHolder {
  explicit Total(at::Tensor sum_) : sum(std::move(sum_)) {}
  void add(const at::Tensor& x) { sum = (sum + x).detach(); }
  at::Tensor value() const { return sum.clone(); }
  at::Tensor sum;
};

// Adds to a total once it has been called often enough.
struct Adder : torch::CustomClassHolder {
  Adder(Pointer<Total> total_, int64_t after_) : total(std::move(total_)), after(after_) {}
  Adder(Pointer<Total> total_, int64_t after_, int64_t calls_)
      : total(std::move(total_)), after(after_), calls(calls_) {}
  at::Tensor step(const at::Tensor& x) {
    if (++calls > after) total->add(x);
    return x * 2;
  }
  Pointer<Total> held() const { return total; }
  Pointer<Total> total;
  int64_t after, calls = 0;
};

// The same, but pickles what is in the total.
struct SecretAdder : torch::CustomClassHolder {
  SecretAdder(Pointer<Total> total, int64_t after, int64_t calls = 0)
      : inner(std::move(total), after, calls) {}
  at::Tensor step(const at::Tensor& x) { return inner.step(x); }
  Adder inner;
};

// Keeps the tensor that it is given, gives it later on, and pickles a copy.
struct Observer : torch::CustomClassHolder {
  Observer(at::Tensor kept_, int64_t after_, int64_t calls_)
      : kept(std::move(kept_)), after(after_), calls(calls_) {}
  at::Tensor look() { return ++calls > after ? kept * 1 : kept * 0; }
  at::Tensor kept;
  int64_t after, calls;
};

// Writes to its argument.
struct Marker : torch::CustomClassHolder {
  explicit Marker(at::Tensor mark_) : mark(std::move(mark_)) {}
  void write(at::Tensor x) {
    x.add_(mark);
    mark = mark + 1;
  }
  void read(const at::Tensor& x) { mark = (mark + x).detach(); }
  at::Tensor mark;
};

}  // namespace

TORCH_LIBRARY(sharing, m) {
  m.class_<Total>("Total")
      .def(torch::init<at::Tensor>())
      .def("add", &Total::add)
      .def("value", &Total::value)
      .def_pickle([](const Pointer<Total>& self) { return self->sum.clone(); },
                  [](const at::Tensor& sum) { return c10::make_intrusive<Total>(sum.clone()); });
  using Shared = std::tuple<Pointer<Total>, int64_t, int64_t>;
  m.class_<Adder>("Adder")
      .def(torch::init<Pointer<Total>, int64_t>())
      .def("step", &Adder::step)
      .def("held", &Adder::held)
      .def_pickle(
          [](const Pointer<Adder>& self) -> Shared {
            return {self->total, self->after, self->calls};
          },
          [](const Shared& state) {
            const auto& [total, after, calls] = state;
            return c10::make_intrusive<Adder>(total, after, calls);
          });
  using Copied = std::tuple<at::Tensor, int64_t, int64_t>;
  m.class_<SecretAdder>("SecretAdder")
      .def(torch::init<Pointer<Total>, int64_t>())
      .def("step", &SecretAdder::step)
      .def_pickle(
          [](const Pointer<SecretAdder>& self) -> Copied {
            return {self->inner.total->value(), self->inner.after, self->inner.calls};
          },
          [](const Copied& state) {
            const auto& [sum, after, calls] = state;
            return c10::make_intrusive<SecretAdder>(
                c10::make_intrusive<Total>(sum.clone()), after, calls);
          });
  m.class_<Observer>("Observer")
      .def(torch::init<at::Tensor, int64_t, int64_t>())
      .def("look", &Observer::look)
      .def_pickle(
          [](const Pointer<Observer>& self) -> Copied {
            return {self->kept.clone(), self->after, self->calls};
          },
          [](const Copied& state) {
            const auto& [kept, after, calls] = state;
            return c10::make_intrusive<Observer>(kept.clone(), after, calls);
          });
  m.class_<Marker>("Marker")
      .def(torch::init<at::Tensor>())
      .def("write", &Marker::write)
      .def("read", &Marker::read)
      .def_pickle([](const Pointer<Marker>& self) { return self->mark.clone(); },
                  [](const at::Tensor& mark) { return c10::make_intrusive<Marker>(mark.clone()); });
}
