// A stack whose items live in C++: the smallest class with state that TorchScript can hold.
//
// PyTorch asks two things of such a class: that it derives from `torch::CustomClassHolder`, which
// gives it a reference count, and that everybody holds it by `c10::intrusive_ptr`, which uses that
// count.

#pragma once

#include <torch/custom_class.h>

#include <string>
#include <utility>
#include <vector>

namespace my_classes {

// A stack of items of type T, the last of which is the top.
//
// A template cannot be registered, only what it makes: `registration.cpp` binds
// MyStackClass<std::string>.
template <class T>
struct MyStackClass : torch::CustomClassHolder {
  explicit MyStackClass(std::vector<T> items) : items_(std::move(items)) {}

  // The last item, which stays. Throws c10::Error where there is none, as `pop` does.
  T top() const {
    TORCH_CHECK(!items_.empty(), "top() of an empty MyStackClass");
    return items_.back();
  }

  void push(T item) { items_.push_back(std::move(item)); }

  // Removes the last item and returns it.
  T pop() {
    TORCH_CHECK(!items_.empty(), "pop() of an empty MyStackClass");
    T item = std::move(items_.back());
    items_.pop_back();
    return item;
  }

  // A stack with the same items that shares nothing with this one.
  c10::intrusive_ptr<MyStackClass> clone() const {
    return c10::make_intrusive<MyStackClass>(items_);
  }

  // Puts the items of `other` on top, in their order. `other` keeps them, and may be this very
  // stack.
  void merge(const c10::intrusive_ptr<MyStackClass>& other) {
    const std::vector<T> added = other->items_;
    items_.insert(items_.end(), added.begin(), added.end());
  }

  // All there is to know of a stack, first item first: what is pickled.
  const std::vector<T>& items() const { return items_; }

 private:
  std::vector<T> items_;
};

}  // namespace my_classes
