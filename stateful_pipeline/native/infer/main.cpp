// Runs a TorchScript model with state, step after step, in a process without Python: see
// options.cpp.
//
// The program knows no class: what a model needs comes from the libraries it is given, so that the
// same binary runs every model.

#include "guard.h"
#include "options.h"
#include "rollout.h"

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  infer::install_guards();
  try {
    const infer::Options options = infer::parse(argc, argv);
    if (options.help) {
      std::cout << infer::kUsage;
      return 0;
    }
    for (const std::string& library : options.libraries) {
      infer::load_library(library);
    }
    infer::run(options);
    return 0;
  } catch (const infer::Failure& failure) {
    std::cerr << "infer: " << failure.what() << std::endl;
    return failure.code;
  } catch (const std::exception& error) {
    std::cerr << "infer: " << error.what() << std::endl;
    return infer::kFailed;
  }
}
