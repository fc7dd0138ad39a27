// Models that torch.jit.save wrote: loaded, and brought back to their initial state.

#pragma once

#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <string>

namespace infer {

// What torch says, without the stack trace of its own frames.
std::string message_of(const std::exception& error);

// Whether a value may be in a place of a type.
bool fits(const c10::IValue& value, const c10::TypePtr& type);

// Throws Failure: kWrong if there is no such file, kFailed if it cannot be loaded.
torch::jit::Module load(const std::string& path);

// Gives `module` the state that a new load of `path` has, and keeps its code where it can: that has
// been optimized for what it was called with.
void renew(torch::jit::Module& module, const std::string& path);

}  // namespace infer
