// What C++ code does with objects of both classes: makes them, puts them into IValues, takes them
// out again, and calls each method, directly and as TorchScript does. Prints the names of the cases
// that hold; the first that does not ends the program.

#include "my_stack_class.h"
#include "tensor_ring.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define HOLDS(condition) check((condition), #condition, __LINE__)

namespace {

using c10::IValue;
using my_classes::MyStackClass;
using stateful::TensorRing;
using Stack = MyStackClass<std::string>;
using Items = std::vector<std::string>;

void check(bool holds, const char* text, int line) {
  if (!holds) {
    throw std::logic_error("line " + std::to_string(line) + ": " + text);
  }
}

template <class Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Calls a method as TorchScript does: by its name, with everything boxed.
IValue call(const IValue& object, const std::string& method, std::vector<IValue> arguments = {}) {
  arguments.insert(arguments.begin(), object);
  return object.toObject()->type()->getMethod(method)(std::move(arguments));
}

at::Tensor frame(float value) { return at::full({2}, value, at::kFloat); }

void into_and_out_of_ivalue() {
  const IValue made = torch::make_custom_class<Stack>(Items{"hi", "mom"});
  HOLDS(made.isCustomClass());
  HOLDS(made.isObject());
  HOLDS(made.type()->str() == "__torch__.torch.classes.my_classes.MyStackClass");
  const auto taken = made.toCustomClass<Stack>();
  taken->push("!");
  HOLDS(made.toCustomClass<Stack>()->top() == "!");
  HOLDS(made.toCustomClass<Stack>().get() == taken.get());

  const auto own = c10::make_intrusive<TensorRing>(3, 2);
  const IValue held(own);
  HOLDS(held.isCustomClass());
  HOLDS(held.toCustomClass<TensorRing>().get() == own.get());
  HOLDS(own.use_count() == 2);
}

void wrong_conversions_throw() {
  const IValue stack = torch::make_custom_class<Stack>(Items{});
  HOLDS(has(error_of([&] { stack.toCustomClass<TensorRing>(); }), "MyStackClass"));
  HOLDS(!IValue(1).isCustomClass());
  HOLDS(!IValue("text").isCustomClass());
  HOLDS(!error_of([] { IValue(1).toCustomClass<Stack>(); }).empty());
}

void in_containers() {
  const auto stack = c10::make_intrusive<Stack>(Items{"a"});
  const IValue list(c10::List<c10::intrusive_ptr<Stack>>({stack, stack}));
  HOLDS(list.toListRef()[1].toCustomClass<Stack>().get() == stack.get());
  const IValue tuple(std::make_tuple(stack, int64_t{3}));
  HOLDS(tuple.toTupleRef().elements()[0].toCustomClass<Stack>().get() == stack.get());
}

void copies_share_nothing() {
  const IValue stack = torch::make_custom_class<Stack>(Items{"a"});
  const IValue copy = stack.deepcopy();
  copy.toCustomClass<Stack>()->push("b");
  HOLDS(stack.toCustomClass<Stack>()->items() == Items{"a"});
  HOLDS((copy.toCustomClass<Stack>()->items() == Items{"a", "b"}));
}

void every_method_of_the_stack() {
  Stack stack({"a"});
  stack.push("b");
  HOLDS(stack.top() == "b");
  const auto clone = stack.clone();
  clone->merge(c10::make_intrusive<Stack>(Items{"c", "d"}));
  HOLDS((clone->items() == Items{"a", "b", "c", "d"}));
  clone->merge(clone);
  HOLDS(clone->items().size() == 8);
  HOLDS(stack.pop() == "b");
  HOLDS(stack.pop() == "a");
  HOLDS(has(error_of([&] { stack.pop(); }), "pop() of an empty MyStackClass"));
  HOLDS(has(error_of([&] { stack.top(); }), "top() of an empty MyStackClass"));
}

void every_method_of_the_stack_boxed() {
  const IValue stack = torch::make_custom_class<Stack>(Items{"a"});
  HOLDS(call(stack, "push", {"b"}).isNone());
  HOLDS(call(stack, "top").toStringRef() == "b");
  const IValue clone = call(stack, "clone");
  HOLDS(call(clone, "merge", {stack}).isNone());
  HOLDS(call(clone, "pop").toStringRef() == "b");
  HOLDS((clone.toCustomClass<Stack>()->items() == Items{"a", "b", "a"}));
  HOLDS((stack.toCustomClass<Stack>()->items() == Items{"a", "b"}));
  const IValue state = call(stack, "__getstate__");
  const IValue other = torch::make_custom_class<Stack>(Items{});
  call(other, "__setstate__", {state});
  HOLDS((other.toCustomClass<Stack>()->items() == Items{"a", "b"}));
}

void every_method_of_the_ring() {
  TensorRing ring(3, 2);
  HOLDS(at::equal(ring.mean(), frame(0)));
  HOLDS(ring.window().size(0) == 0);
  for (int i = 1; i <= 7; ++i) {
    ring.push(frame(static_cast<float>(i)));
  }
  HOLDS(ring.size() == 3);
  HOLDS(at::equal(ring.mean(), frame(6)));
  HOLDS(at::equal(ring.window()[0], frame(5)));
  HOLDS(at::equal(ring.window()[2], frame(7)));
  const auto clone = ring.clone();
  ring.reset();
  HOLDS(ring.size() == 0);
  HOLDS(clone->size() == 3);
  HOLDS(at::equal(TensorRing(clone->state()).window(), clone->window()));
  HOLDS(has(error_of([&] { ring.push(at::full({3}, 1.F)); }), "a frame must be float32 [2]"));
  HOLDS(has(error_of([] { TensorRing(0, 2); }), "must be positive"));
  HOLDS(has(error_of([&] { TensorRing({clone->window(), 1, 0}); }), "no ring of capacity 3"));
}

void every_method_of_the_ring_boxed() {
  const IValue ring = torch::make_custom_class<TensorRing>(2, 2);
  HOLDS(call(ring, "push", {frame(1)}).isNone());
  HOLDS(call(ring, "size").toInt() == 1);
  HOLDS(at::equal(call(ring, "mean").toTensor(), frame(1)));
  HOLDS(at::equal(call(ring, "window").toTensor()[0], frame(1)));
  const IValue clone = call(ring, "clone");
  HOLDS(call(ring, "reset").isNone());
  HOLDS(call(ring, "size").toInt() == 0);
  call(ring, "__setstate__", {call(clone, "__getstate__")});
  HOLDS(call(ring, "size").toInt() == 1);
}

void operator_by_the_dispatcher() {
  const IValue stack = torch::make_custom_class<Stack>(Items{"a", "b"});
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("my_classes::manipulate_instance", "");
  torch::jit::Stack values{stack};
  op.callBoxed(values);
  HOLDS(values.size() == 1);
  HOLDS(values[0].toCustomClass<Stack>().get() == stack.toCustomClass<Stack>().get());
  HOLDS(stack.toCustomClass<Stack>()->items() == Items{"a"});
}

void module_made_in_cpp_is_saved_and_loaded() {
  torch::jit::Module module("m");
  const IValue stack = torch::make_custom_class<Stack>(Items{"hi", "mom"});
  module.register_attribute("stack", stack.type(), stack);
  module.define("def forward(self, x: str) -> str:\n    return self.stack.pop() + x\n");
  std::stringstream file;
  module.save(file);
  HOLDS(module.forward({"bar"}).toStringRef() == "mombar");
  torch::jit::Module again = torch::jit::load(file);
  HOLDS(again.forward({"foobarbaz"}).toStringRef() == "momfoobarbaz");
  HOLDS(again.forward({"?"}).toStringRef() == "hi?");
}

}  // namespace

#define RUN(test) (test(), std::cout << #test << std::endl)

int main() {
  try {
    RUN(into_and_out_of_ivalue);
    RUN(wrong_conversions_throw);
    RUN(in_containers);
    RUN(copies_share_nothing);
    RUN(every_method_of_the_stack);
    RUN(every_method_of_the_stack_boxed);
    RUN(every_method_of_the_ring);
    RUN(every_method_of_the_ring_boxed);
    RUN(operator_by_the_dispatcher);
    RUN(module_made_in_cpp_is_saved_and_loaded);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
