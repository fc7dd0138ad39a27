// How `infer` ends: one line of text on stderr and an exit code, whatever libraries and models do.

#pragma once

#include <stdexcept>
#include <string>

namespace infer {

constexpr int kWrong = 2;   // the command line is wrong, or a file is missing
constexpr int kFailed = 3;  // loading or running failed

struct Failure : std::runtime_error {
  Failure(int code_, const std::string& message) : std::runtime_error(message), code(code_) {}
  int code;
};

// Says what went wrong instead of dumping core, where nobody can catch it: a library's static
// initializers throw through dlopen, which is no C++, and a class may write where it must not.
void install_guards();

// What the process is doing as long as this lives, for what the guards say.
class Doing {
 public:
  // `what` has to live as long.
  explicit Doing(const std::string& what);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  const char* before_;
};

// Loads a shared library, whose static initializers register classes and operators.
//
// Throws Failure: kWrong if there is no such file, kFailed if it cannot be loaded.
void load_library(const std::string& path);

}  // namespace infer
