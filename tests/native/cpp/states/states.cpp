// Classes whose state is of several kinds, and some that do what no class should.

#include <torch/custom_class.h>
#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// A running mean per row, which begins with the first values.
struct Ema : torch::CustomClassHolder {
  using State = std::tuple<at::Tensor, double, int64_t>;
  Ema(int64_t features, double decay_) : mean(at::zeros({1, features})), decay(decay_) {}
  explicit Ema(const State& state)
      : mean(std::get<0>(state).clone()), decay(std::get<1>(state)), steps(std::get<2>(state)) {}

  at::Tensor update(const at::Tensor& x, double weight) {
    mean = (steps == 0 ? x * weight : mean * decay + x * ((1 - decay) * weight)).detach();
    ++steps;
    return mean.clone();
  }
  void add(const c10::intrusive_ptr<Ema>& other) { mean = mean + other->mean; }
  c10::intrusive_ptr<Ema> clone() const { return c10::make_intrusive<Ema>(state()); }
  int64_t count() const { return steps; }
  State state() const { return {mean, decay, steps}; }

  at::Tensor mean;
  double decay;
  int64_t steps = 0;
};

// Tensors in a list and in a dict.
struct Bag : torch::CustomClassHolder {
  using State = std::tuple<std::vector<at::Tensor>, c10::Dict<std::string, at::Tensor>>;
  explicit Bag(int64_t features) {
    last = {at::zeros({features}), at::zeros({features})};
    sums.insert("all", at::zeros({features}));
  }
  explicit Bag(const State& state) : last(std::get<0>(state)) {
    for (const auto& item : std::get<1>(state)) sums.insert(item.key(), item.value().clone());
  }
  at::Tensor put(const at::Tensor& x) {
    last = {last[1], x.detach().clone()};
    sums.insert_or_assign("all", sums.at("all") + last[1]);
    return last[0] + sums.at("all");
  }
  int64_t size() const { return static_cast<int64_t>(last.size()); }
  at::Tensor at(int64_t index) const { return last.at(index).clone(); }
  State state() const { return {last, sums}; }

  std::vector<at::Tensor> last;
  c10::Dict<std::string, at::Tensor> sums;
};

// Pickles its sum and forgets how many calls it has had.
struct Forgetful : torch::CustomClassHolder {
  explicit Forgetful(at::Tensor sum_) : sum(std::move(sum_)) {}
  at::Tensor add(const at::Tensor& x) {
    sum = sum + x;
    return sum * static_cast<double>(++calls);
  }
  at::Tensor sum;
  int64_t calls = 0;
};

// Keeps what it is given, with the graph that made it.
struct Keeping : torch::CustomClassHolder {
  explicit Keeping(at::Tensor last_) : last(std::move(last_)) {}
  at::Tensor swap(const at::Tensor& x) { return std::exchange(last, x); }
  at::Tensor last;
};

// The same, but pickles a copy without the graph.
struct Hiding : torch::CustomClassHolder {
  explicit Hiding(at::Tensor last_) : last(std::move(last_)) {}
  void keep(const at::Tensor& x) { last = x; }
  at::Tensor get() const { return last; }
  at::Tensor last;
};

// Begins with what a differentiable factory makes.
struct Differentiable : torch::CustomClassHolder {
  explicit Differentiable(at::Tensor sum_) : sum(std::move(sum_)) {}
  at::Tensor add(const at::Tensor& x) { return sum = sum + x; }
  at::Tensor sum;
};

// Writes to its tensor in place, and pickles that very tensor.
struct Sharing : torch::CustomClassHolder {
  explicit Sharing(at::Tensor sum_) : sum(std::move(sum_)) {}
  at::Tensor add(const at::Tensor& x) { return sum.add_(x.detach()).clone(); }
  at::Tensor sum;
};

// Holds nothing before its first call.
struct Lazy : torch::CustomClassHolder {
  explicit Lazy(std::optional<at::Tensor> last_) : last(std::move(last_)) {}
  at::Tensor next(const at::Tensor& x) {
    last = (last ? *last + x : x.clone()).detach();
    return last->clone();
  }
  std::optional<at::Tensor> last;
};

struct Unpickled : torch::CustomClassHolder {
  at::Tensor next(const at::Tensor& x) { return x + static_cast<double>(++calls); }
  int64_t calls = 0;
};

}  // namespace

TORCH_LIBRARY(states, m) {
  m.class_<Ema>("Ema")
      .def(torch::init<int64_t, double>())
      .def("update", &Ema::update)
      .def("add", &Ema::add)
      .def("clone", &Ema::clone)
      .def("count", &Ema::count)
      .def_pickle([](const c10::intrusive_ptr<Ema>& self) { return self->state(); },
                  [](const Ema::State& state) { return c10::make_intrusive<Ema>(state); });
  m.class_<Bag>("Bag")
      .def(torch::init<int64_t>())
      .def("put", &Bag::put)
      .def("__len__", &Bag::size)
      .def("__getitem__", &Bag::at)
      .def_pickle([](const c10::intrusive_ptr<Bag>& self) { return self->state(); },
                  [](const Bag::State& state) { return c10::make_intrusive<Bag>(state); });
  m.class_<Forgetful>("Forgetful")
      .def(torch::init<at::Tensor>())
      .def("add", &Forgetful::add)
      .def_pickle([](const c10::intrusive_ptr<Forgetful>& self) { return self->sum; },
                  [](at::Tensor sum) { return c10::make_intrusive<Forgetful>(std::move(sum)); });
  m.class_<Keeping>("Keeping")
      .def(torch::init<at::Tensor>())
      .def("swap", &Keeping::swap)
      .def_pickle([](const c10::intrusive_ptr<Keeping>& self) { return self->last; },
                  [](at::Tensor last) { return c10::make_intrusive<Keeping>(std::move(last)); });
  m.class_<Hiding>("Hiding")
      .def(torch::init<at::Tensor>())
      .def("keep", &Hiding::keep)
      .def("get", &Hiding::get)
      .def_pickle(
          [](const c10::intrusive_ptr<Hiding>& self) { return self->last.detach(); },
          [](at::Tensor last) { return c10::make_intrusive<Hiding>(std::move(last)); });
  m.class_<Differentiable>("Differentiable")
      .def(torch::init([](int64_t features) {
        return c10::make_intrusive<Differentiable>(
            torch::zeros({features}, c10::requires_grad(true)));
      }))
      .def("add", &Differentiable::add)
      .def_pickle(
          [](const c10::intrusive_ptr<Differentiable>& self) { return self->sum; },
          [](at::Tensor sum) { return c10::make_intrusive<Differentiable>(std::move(sum)); });
  m.class_<Sharing>("Sharing")
      .def(torch::init<at::Tensor>())
      .def("add", &Sharing::add)
      .def_pickle([](const c10::intrusive_ptr<Sharing>& self) { return self->sum; },
                  [](at::Tensor sum) { return c10::make_intrusive<Sharing>(std::move(sum)); });
  m.class_<Lazy>("Lazy")
      .def(torch::init<std::optional<at::Tensor>>())
      .def("next", &Lazy::next)
      .def_pickle([](const c10::intrusive_ptr<Lazy>& self) { return self->last; },
                  [](std::optional<at::Tensor> last) {
                    return c10::make_intrusive<Lazy>(std::move(last));
                  });
  m.class_<Unpickled>("Unpickled").def(torch::init<>()).def("next", &Unpickled::next);
  m.def("lift(__torch__.torch.classes.states.Ema ema, Tensor x) -> Tensor",
        [](const c10::intrusive_ptr<Ema>& ema, const at::Tensor& x) { return x + ema->mean; });
}
