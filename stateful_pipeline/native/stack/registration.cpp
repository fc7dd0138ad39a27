// Makes MyStackClass<std::string> known to PyTorch, when this library is loaded, as
// `torch.classes.my_classes.MyStackClass`, and the operator
// `torch.ops.my_classes.manipulate_instance`.

#include "my_stack_class.h"

namespace my_classes {
namespace {

using Stack = MyStackClass<std::string>;
using StackPtr = c10::intrusive_ptr<Stack>;

// Pops the top and returns the very stack it was given, not a copy of it.
StackPtr manipulate_instance(const StackPtr& instance) {
  instance->pop();
  return instance;
}

}  // namespace

TORCH_LIBRARY(my_classes, m) {
  m.class_<Stack>("MyStackClass")
      .def(torch::init<std::vector<std::string>>())
      .def("top", &Stack::top)
      .def("push", &Stack::push)
      .def("pop", &Stack::pop)
      .def("clone", &Stack::clone)
      .def("merge", &Stack::merge)
      // Without these two, a module that holds a stack can be scripted and run, but not saved. The
      // argument of the second has to be of the type that the first returns.
      .def_pickle([](const StackPtr& self) -> std::vector<std::string> { return self->items(); },
                  [](std::vector<std::string> state) -> StackPtr {
                    return c10::make_intrusive<Stack>(std::move(state));
                  });

  // A bare name: PyTorch infers the schema and assumes that the operator may change what it is
  // given. A schema in words, which cannot say that of an object, would let TorchScript take the
  // call for one without effects and leave it out where nobody reads its result.
  m.def("manipulate_instance", &manipulate_instance);
}

}  // namespace my_classes
