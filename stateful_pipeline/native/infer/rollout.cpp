#include "rollout.h"

#include "guard.h"
#include "model.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

namespace infer {
namespace {

using c10::IValue;
using torch::jit::Module;

struct Arguments {
  std::vector<IValue> positional;
  std::unordered_map<std::string, IValue> named;
};

// Does `work`; what it throws becomes a Failure that says what was being done.
template <class Work>
auto attempt(const std::string& what, Work work) {
  const Doing doing(what);
  try {
    return work();
  } catch (const Failure&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(kFailed, what + ": " + message_of(error));
  }
}

std::vector<char> read(const std::string& path, const std::string& what) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Failure(kWrong, what + " " + path + " cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Writes a whole file or none: a reader never sees half of one.
void write(const std::string& path, const std::vector<char>& content) {
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    std::remove(partial.c_str());
    throw Failure(kWrong, path + " cannot be written");
  }
}

// Gives lists and dicts the types of their elements, which pickled ones do not have.
//
// What holds anything else is left alone, for the call to refuse.
void give_types(const IValue& value, const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    give_types(value, optional->getElementType());
  } else if (const auto list = type->cast<c10::ListType>(); list && value.isList()) {
    auto items = value.toList();
    bool all_fit = true;
    for (const IValue& item : items.vec()) {
      give_types(item, list->getElementType());
      all_fit = all_fit && fits(item, list->getElementType());
    }
    if (all_fit) {
      items.unsafeSetElementType(list->getElementType());
    }
  } else if (const auto dict = type->cast<c10::DictType>(); dict && value.isGenericDict()) {
    auto items = value.toGenericDict();
    bool all_fit = true;
    for (const auto& item : items) {
      give_types(item.value(), dict->getValueType());
      all_fit = all_fit && fits(item.key(), dict->getKeyType()) &&
                fits(item.value(), dict->getValueType());
    }
    if (all_fit) {
      items.unsafeSetKeyType(dict->getKeyType());
      items.unsafeSetValueType(dict->getValueType());
    }
  } else if (const auto tuple = type->cast<c10::TupleType>(); tuple && value.isTuple()) {
    const auto& items = value.toTupleRef().elements();
    for (std::size_t i = 0; i < items.size() && i < tuple->elements().size(); ++i) {
      give_types(items[i], tuple->elements()[i]);
    }
  }
}

Arguments arguments_of(const IValue& step) {
  Arguments found;
  if (step.isTuple()) {
    const auto& items = step.toTupleRef().elements();
    found.positional.assign(items.begin(), items.end());
  } else if (step.isGenericDict()) {
    for (const auto& item : step.toGenericDict()) {
      found.named.emplace(item.key().toStringRef(), item.value());
    }
  } else {
    found.positional.push_back(step);
  }
  return found;
}

std::vector<IValue> steps_of(const Options& options) {
  if (options.string) {
    return {IValue(*options.string)};
  }
  const IValue value = attempt("inputs " + *options.inputs, [&] {
    return torch::jit::pickle_load(read(*options.inputs, "inputs"));
  });
  if (!value.isList() || value.toListRef().empty()) {
    throw Failure(kFailed,
                  "inputs " + *options.inputs + ": a " + value.tagKind() + ", not a list of steps");
  }
  return value.toListRef().vec();
}

// A copy that shares nothing: a model may write to its inputs, or return the state it goes on
// changing.
IValue own_copy(const IValue& value) { return value.deepcopy(); }

int64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const auto taken = std::chrono::steady_clock::now() - start;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
}

class Rollout {
 public:
  explicit Rollout(const Options& options) : options_(options) {
    const auto start = std::chrono::steady_clock::now();
    module_ = load(options.model);
    load_nanoseconds_ = nanoseconds_since(start);
    require(options.method);
    if (options.reset_method) {
      require(*options.reset_method);
    }
  }

  void run(const std::vector<IValue>& inputs) {
    const std::size_t steps = options_.steps == 0 ? inputs.size() : options_.steps;
    for (std::size_t i = 0; i < steps; ++i) {
      if (resets_before(i)) {
        attempt("reset before step " + std::to_string(i), [&] { reset(); });
      }
      attempt("step " + std::to_string(i), [&] { step(own_copy(inputs[i % inputs.size()])); });
    }
  }

  void write_results() const {
    if (options_.string) {
      print();
    }
    if (options_.outputs) {
      const auto pickled = attempt("outputs " + *options_.outputs,
                                   [&] { return torch::jit::pickle_save(outputs_); });
      write(*options_.outputs, pickled);
    }
    if (options_.times) {
      write_times(*options_.times);
    }
  }

 private:
  void require(const std::string& method) const {
    if (!module_.find_method(method)) {
      throw Failure(kWrong, "model " + options_.model + " has no method '" + method + "'");
    }
  }

  bool resets_before(std::size_t step) const {
    const auto& at = options_.reset_at;
    const bool every =
        options_.reset_every != 0 && step != 0 && step % options_.reset_every == 0;
    return every || std::find(at.begin(), at.end(), step) != at.end();
  }

  void reset() {
    if (options_.reset_method) {
      const torch::jit::Method method = module_.get_method(*options_.reset_method);
      method({});
    } else {
      renew(module_, options_.model);
    }
  }

  void step(const IValue& input) {
    const torch::jit::Method method = module_.get_method(options_.method);
    Arguments given = arguments_of(input);
    const auto& declared = method.function().getSchema().arguments();  // the first is the module
    for (std::size_t i = 1; i < declared.size(); ++i) {
      const auto named = given.named.find(declared[i].name());
      if (i - 1 < given.positional.size()) {
        give_types(given.positional[i - 1], declared[i].type());
      } else if (named != given.named.end()) {
        give_types(named->second, declared[i].type());
      }
    }
    const auto start = std::chrono::steady_clock::now();
    const IValue output = method(std::move(given.positional), given.named);
    nanoseconds_.push_back(nanoseconds_since(start));
    if (options_.outputs || options_.string) {
      outputs_.push_back(own_copy(output));
    }
  }

  void print() const {
    for (const IValue& output : outputs_.vec()) {
      if (!output.isString()) {
        throw Failure(kFailed, "the model returns a " + output.tagKind() + ", not a string");
      }
      std::cout << output.toStringRef() << '\n';
    }
  }

  void write_times(const std::string& path) const {
    std::string text =
        "{\"load_nanoseconds\": " + std::to_string(load_nanoseconds_) + ", \"nanoseconds\": [";
    for (std::size_t i = 0; i < nanoseconds_.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(nanoseconds_[i]);
    }
    text += "]}\n";
    write(path, {text.begin(), text.end()});
  }

  const Options& options_;
  Module module_;
  int64_t load_nanoseconds_ = 0;
  std::vector<int64_t> nanoseconds_;
  c10::impl::GenericList outputs_{c10::AnyType::get()};
};

}  // namespace

void run(const Options& options) {
  if (options.threads != 0) {
    at::set_num_threads(options.threads);
  }
  const c10::AutoGradMode no_graph(false);
  const std::vector<IValue> inputs = steps_of(options);
  Rollout rollout(options);
  rollout.run(inputs);
  rollout.write_results();
}

}  // namespace infer
