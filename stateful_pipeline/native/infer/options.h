// The command line of `infer`.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace infer {

struct Options {
  std::string model;
  std::vector<std::string> libraries;
  std::vector<std::size_t> reset_at;
  std::optional<std::string> inputs;
  std::optional<std::string> string;
  std::optional<std::string> outputs;
  std::optional<std::string> times;
  std::optional<std::string> reset_method;
  std::string method = "forward";
  std::size_t steps = 0;        // 0: as many as there are inputs
  std::size_t reset_every = 0;  // 0: never
  int threads = 0;              // 0: as many as PyTorch likes
  bool help = false;
};

extern const char* const kUsage;

// Throws Failure (kWrong) where the command line is wrong.
Options parse(int argc, char** argv);

}  // namespace infer
