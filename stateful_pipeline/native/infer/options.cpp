#include "options.h"

#include "guard.h"

#include <charconv>
#include <string_view>
#include <system_error>

namespace infer {

const char* const kUsage =
    R"(usage: infer MODEL [--library LIB]... (--inputs FILE | --string TEXT) [options]

Runs MODEL, which torch.jit.save wrote, step after step: what the module keeps is its state.

  --library LIB        a library of custom classes or operators that MODEL uses; may be repeated
  --inputs FILE        a list with one element per step, written by torch.save: a tuple of
                       arguments, a dict of arguments by name, or the only argument
  --string TEXT        one step with this string as its argument; its result, a string, is printed
  --outputs FILE       write a list with what each step returned; in Python,
                       torch.load(FILE, weights_only=False) reads it
  --steps N            run N steps, from the first input again after the last; one per input
                       by default
  --method NAME        the method that is one step (default: forward)
  --reset-every K      go back to the initial state after every K steps, by loading MODEL again
  --reset-at N         go back to it before step N too, counted from 0; may be repeated
  --reset-method NAME  go back by calling this method instead
  --time FILE          write the nanoseconds of each step, and of loading, as JSON
  --threads N          the number of threads that PyTorch computes with

Exit codes: 0 done; 2 the command line is wrong or a file is missing; 3 loading or running failed.
)";

namespace {

template <class T>
T number(std::string_view option, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1) {
    throw Failure(
        kWrong, std::string(option) + " takes a number from 1 on, not '" + std::string(text) + "'");
  }
  return value;
}

// Stores the value of an option; false if there is no such option.
bool store(Options& options, std::string_view name, const std::string& value) {
  if (name == "--library") {
    options.libraries.push_back(value);
  } else if (name == "--inputs") {
    options.inputs = value;
  } else if (name == "--string") {
    options.string = value;
  } else if (name == "--outputs") {
    options.outputs = value;
  } else if (name == "--time") {
    options.times = value;
  } else if (name == "--method") {
    options.method = value;
  } else if (name == "--reset-method") {
    options.reset_method = value;
  } else if (name == "--steps") {
    options.steps = number<std::size_t>(name, value);
  } else if (name == "--reset-every") {
    options.reset_every = number<std::size_t>(name, value);
  } else if (name == "--reset-at") {
    options.reset_at.push_back(number<std::size_t>(name, value));
  } else if (name == "--threads") {
    options.threads = number<int>(name, value);
  } else {
    return false;
  }
  return true;
}

void check(const Options& options) {
  if (options.model.empty()) {
    throw Failure(kWrong, "no MODEL given; see infer --help");
  }
  if (options.inputs.has_value() == options.string.has_value()) {
    throw Failure(kWrong, "give either --inputs FILE or --string TEXT");
  }
  if (options.reset_method && options.reset_every == 0 && options.reset_at.empty()) {
    throw Failure(kWrong, "--reset-method needs --reset-every K or --reset-at N");
  }
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      options.help = true;
      return options;
    }
    if (argument.rfind("--", 0) != 0) {
      if (!options.model.empty()) {
        throw Failure(kWrong, "a second MODEL: '" + argument + "'; see infer --help");
      }
      options.model = argument;
      continue;
    }
    const bool has_value = i + 1 < argc;
    if (!store(options, argument, has_value ? argv[i + 1] : "1")) {
      throw Failure(kWrong, "no option '" + argument + "'; see infer --help");
    }
    if (!has_value) {
      throw Failure(kWrong, argument + " takes a value");
    }
    ++i;
  }
  check(options);
  return options;
}

}  // namespace infer
