// The steps of a model, from its files to its files.

#pragma once

#include "options.h"

namespace infer {

// Loads the model and the inputs, runs the steps and writes what was asked for.
//
// Throws Failure.
void run(const Options& options);

}  // namespace infer
