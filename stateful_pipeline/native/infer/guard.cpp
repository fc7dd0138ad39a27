#include "guard.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

namespace infer {
namespace {

std::atomic<const char*> current{"starting"};

// The first line: what torch throws has a stack trace in the others.
std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

[[noreturn]] void on_terminate() {
  std::string message = "ended without an error";
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      message = first_line(error.what());
    } catch (...) {
      message = "threw what is no std::exception";
    }
  }
  std::cerr << "infer: " << current.load() << ": " << message << std::endl;
  std::_Exit(kFailed);
}

void write_all(const char* text) {
  // Nothing more can be done where even this fails.
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {
    std::_Exit(kFailed);
  }
}

// Calls nothing but what may be called in a signal handler.
void on_crash(int signal) {
  write_all("infer: ");
  write_all(current.load());
  write_all(": crashed, signal ");
  const char digits[] = {static_cast<char>('0' + signal / 10), static_cast<char>('0' + signal % 10),
                         '\n', '\0'};
  write_all(digits);
  std::_Exit(kFailed);
}

}  // namespace

void install_guards() {
  std::set_terminate(on_terminate);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction action = {};
    action.sa_handler = on_crash;
    sigaction(signal, &action, nullptr);
  }
}

Doing::Doing(const std::string& what) : before_(current.exchange(what.c_str())) {}

Doing::~Doing() { current = before_; }

void load_library(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) {
    throw Failure(kWrong, "library " + path + ": " + std::strerror(errno));
  }
  // A name without a slash would be looked for in the system's folders alone.
  const std::string name = path.find('/') == std::string::npos ? "./" + path : path;
  const std::string what = "loading library " + path;
  const Doing doing(what);
  // RTLD_NOW: a missing symbol is an error here, not a crash at its first call. RTLD_GLOBAL:
  // libraries that come later may build on this one.
  if (::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw Failure(kFailed, what + ": " + ::dlerror());
  }
}

}  // namespace infer
