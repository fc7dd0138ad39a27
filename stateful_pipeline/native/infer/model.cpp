#include "model.h"

#include "guard.h"

#include <torch/csrc/jit/serialization/import.h>

#include <fstream>
#include <regex>

namespace infer {
namespace {

using torch::jit::Module;

// What a model names that is not there: "class my_classes.MyStackClass", or nothing.
std::string missing_part(const std::string& message) {
  std::smatch found;
  static const std::regex type(R"(__torch__\.torch\.classes\.([\w.]+))");
  static const std::regex op(R"(Unknown builtin op: (\w+::\w+))");
  if (std::regex_search(message, found, type)) {
    return "class " + found[1].str();
  }
  return std::regex_search(message, found, op) ? "operator " + found[1].str() : "";
}

// Whether `module` can hold what `fresh` holds; it cannot where a load has made a class anew.
bool can_take(const Module& module, const Module& fresh) {
  for (const auto& attribute : module.type()->getAttributes()) {
    const std::string& name = attribute.getName();
    const bool fit = attribute.getType()->is_module()
                         ? can_take(module.attr(name).toModule(), fresh.attr(name).toModule())
                         : fits(fresh.attr(name), attribute.getType());
    if (!fit) {
      return false;
    }
  }
  return true;
}

// Lets `module` hold the very values that `fresh` holds, and so what these share.
void take(const Module& module, const Module& fresh) {
  for (const auto& attribute : module.type()->getAttributes()) {
    const std::string& name = attribute.getName();
    if (attribute.getType()->is_module()) {
      take(module.attr(name).toModule(), fresh.attr(name).toModule());
    } else {
      module._ivalue()->setAttr(name, fresh.attr(name));
    }
  }
}

}  // namespace

std::string message_of(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  return own == nullptr ? error.what() : own->what_without_backtrace();
}

bool fits(const c10::IValue& value, const c10::TypePtr& type) {
  return value.type()->isSubtypeOf(*type);
}

Module load(const std::string& path) {
  if (!std::ifstream(path)) {
    throw Failure(kWrong, "model " + path + " cannot be read");
  }
  const std::string what = "loading model " + path;
  const Doing doing(what);
  try {
    Module module = torch::jit::load(path, at::kCPU);
    module.eval();
    return module;
  } catch (const std::exception& error) {
    const std::string message = message_of(error);
    const std::string part = missing_part(message);
    if (part.empty()) {
      throw Failure(kFailed, what + ": " + message);
    }
    throw Failure(kFailed,
                  what + ": it uses " + part + ", which nobody registered; give its --library");
  }
}

void renew(Module& module, const std::string& path) {
  const Module fresh = load(path);
  if (can_take(module, fresh)) {
    take(module, fresh);
  } else {
    module = fresh;
  }
}

}  // namespace infer
