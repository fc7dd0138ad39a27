// Shows how the factory functions of `torch::` and `at::` differ: which tensors get gradients.
//
// `torch::ones` makes a variable, which takes part in autograd where its options say so. `at::ones`
// makes a plain tensor and knows nothing of autograd. Both are at::Tensor, so that the compiler
// does not mind.
//
// Prints one fact a line, as JSON: {"name": ..., "value": ...}. What would end a program that does
// not catch it is caught here, and its message is the value.

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <ATen/ATen.h>

#include <exception>
#include <iostream>
#include <string>

namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + '"';
}

void line(const std::string& name, const std::string& json) {
  std::cout << "{\"name\": " << quoted(name) << ", \"value\": " << json << "}\n";
}

void fact(const std::string& name, bool value) { line(name, value ? "true" : "false"); }

void fact(const std::string& name, const at::Tensor& value) {
  if (!value.defined()) {
    line(name, "null");
    return;
  }
  std::string items;
  const at::Tensor flat = value.detach().reshape(-1).to(at::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    items += (i == 0 ? "" : ", ") + std::to_string(flat[i].item<double>());
  }
  line(name, "[" + items + "]");
}

// The message with which `work` fails, without torch's stack trace; null if it does not fail.
template <class Work>
void error(const std::string& name, Work work) {
  try {
    work();
    line(name, "null");
  } catch (const c10::Error& error) {
    line(name, quoted(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    line(name, quoted(error.what()));
  }
}

// Variables, where they are asked for.
void of_torch() {
  fact("torch::ones", torch::ones({2, 2}).requires_grad());
  fact("torch::rand", torch::rand({2, 2}).requires_grad());
  fact("torch::ones requires_grad()", torch::ones({2, 2}, torch::requires_grad()).requires_grad());
  fact("torch::rand requires_grad()", torch::rand({2, 2}, torch::requires_grad()).requires_grad());
  fact("torch::rand requires_grad() is_leaf",
       torch::rand({2, 2}, torch::requires_grad()).is_leaf());
  fact("torch::rand requires_grad(false)",
       torch::rand({2, 2}, torch::TensorOptions().requires_grad(false)).requires_grad());
}

// Plain tensors, whatever is asked for.
void of_at() {
  fact("at::ones", at::ones({2, 2}).requires_grad());
  fact("at::rand", at::rand({2, 2}).requires_grad());
  const auto options = at::TensorOptions().requires_grad(true);
  fact("at::ones requires_grad()", at::ones({2, 2}, options).requires_grad());
  fact("at::rand requires_grad()", at::rand({2, 2}, options).requires_grad());
}

// The forms that fill a tensor that is there: `torch::ones_out` is `at::ones_out`.
void of_out() {
  at::Tensor plain = torch::empty({2, 2});
  torch::ones_out(plain, {2, 2});
  fact("torch::ones_out values", plain);
  fact("torch::ones_out", plain.requires_grad());
  torch::rand_out(plain, {2, 2});
  fact("torch::rand_out", plain.requires_grad());

  const at::Tensor leaf = torch::zeros({2, 2}, torch::requires_grad());
  at::Tensor out = leaf;
  error("torch::ones_out into a variable error", [&] { torch::ones_out(out, {2, 2}); });
  error("torch::rand_out into a variable error", [&] { torch::rand_out(out, {2, 2}); });
  error("at::ones_out into a variable error", [&] { at::ones_out(out, {2, 2}); });
  const at::NoGradGuard no_grad;
  torch::ones_out(out, {2, 2});
  fact("torch::ones_out into a variable without gradients", leaf);
  fact("torch::ones_out into a variable without gradients requires_grad", leaf.requires_grad());
}

// The mean of four numbers: each has a quarter of its gradient.
void of_gradients() {
  const at::Tensor x = torch::ones({2, 2}, torch::requires_grad());
  const at::Tensor y = x.mean();
  fact("mean requires_grad", y.requires_grad());
  fact("mean is_leaf", y.is_leaf());
  y.retain_grad();
  y.backward();
  fact("x.grad", x.grad());
  fact("y.grad", y.grad());

  const at::Tensor other = torch::ones({2, 2}, torch::requires_grad());
  const at::Tensor unkept = other.mean();
  unkept.backward();
  fact("x.grad without retain_grad", other.grad());
  fact("retains_grad without retain_grad", unkept.retains_grad());

  // The mean keeps no tensor for its gradient; the square keeps its factors, which the first call
  // frees.
  error("mean backward twice error", [&] { unkept.backward(); });
  fact("x.grad after mean backward twice", other.grad());
  const at::Tensor square = (x * x).mean();
  square.backward();
  error("square backward twice error", [&] { square.backward(); });
  const at::Tensor kept = (x * x).mean();
  kept.backward({}, /*retain_graph=*/true);
  error("square backward twice with retain_graph error", [&] { kept.backward(); });
}

// A plain tensor becomes a leaf by set_requires_grad; what was computed before knows nothing of it.
void of_set_requires_grad() {
  const at::Tensor x = at::ones({2, 2});
  const at::Tensor before = x.mean();
  error("retain_grad of a plain tensor error", [&] { before.retain_grad(); });
  error("backward of a plain tensor error", [&] { before.backward(); });
  x.set_requires_grad(true);
  fact("at::ones after set_requires_grad", x.requires_grad());
  fact("mean before set_requires_grad", before.requires_grad());
  const at::Tensor after = x.mean();
  fact("mean after set_requires_grad", after.requires_grad());
  after.retain_grad();
  after.backward();
  fact("x.grad after set_requires_grad", x.grad());
  fact("y.grad after set_requires_grad", after.grad());
  error("set_requires_grad of integers error",
        [] { at::ones({2, 2}, at::kLong).set_requires_grad(true); });
}

}  // namespace

int main() {
  try {
    of_torch();
    of_at();
    of_out();
    of_gradients();
    of_set_requires_grad();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "factories: " << error.what() << std::endl;
    return 1;
  }
}
