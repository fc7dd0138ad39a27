// Does harm while it is loaded, of the kind that the variable CLASH names; none if it is not set.

#include <torch/custom_class.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

namespace {

struct Other : torch::CustomClassHolder {
  int64_t one() const { return 1; }
};

bool act(const std::string& harm) {
  static std::optional<torch::Library> library;
  if (harm == "namespace") {
    library.emplace(torch::Library::DEF, "my_classes", std::nullopt, __FILE__, __LINE__);
  } else if (harm == "class" || harm == "operator") {
    library.emplace(torch::Library::FRAGMENT, "my_classes", std::nullopt, __FILE__, __LINE__);
    if (harm == "class") {
      library->class_<Other>("MyStackClass").def(torch::init<>()).def("one", &Other::one);
    } else {
      library->def("manipulate_instance(Tensor x) -> Tensor");
    }
  } else if (harm == "throw") {
    throw std::runtime_error("no licence found");
  } else if (harm == "crash") {
    std::raise(SIGSEGV);
  } else if (harm == "exit") {
    std::_Exit(7);
  }
  return true;
}

[[maybe_unused]] const bool acted =
    act(std::getenv("CLASH") == nullptr ? "" : std::getenv("CLASH"));

}  // namespace
