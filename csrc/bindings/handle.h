#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "base/error.h"

namespace symmoe::bindings {

// What Python holds of a group. The interpreter lock orders let_go() against the start of calls; a
// call that runs keeps the group's memory through its own reference.
template <typename Group>
class Handle {
 public:
  Handle() = default;
  ~Handle() { let_go(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void hold(std::shared_ptr<Group> group) { group_ = std::move(group); }
  bool empty() const { return group_ == nullptr; }
  const std::shared_ptr<Group>& group() const {
    if (group_ == nullptr) throw Closed("the group is closed");
    return group_;
  }

  // Runs `body(group)` without the interpreter lock.
  template <typename Body>
  auto call(Body&& body) const {
    if (group_ == nullptr) throw Closed("the group is closed");
    std::shared_ptr<Group> shared = group_;
    const pybind11::gil_scoped_release release;
    // Behind `release`, so that it goes first: it may be the last one, and unmapping takes a while.
    const std::shared_ptr<Group> group = std::move(shared);
    return body(*group);
  }

  // group_ is empty before the interpreter lock is free: no call begins any more. By Python's own
  // means, since a destructor calls this and pybind11's might throw.
  void let_go() noexcept {
    if (group_ == nullptr) return;
    std::shared_ptr<Group> last = std::move(group_);
    PyThreadState* const thread = PyEval_SaveThread();
    last.reset();
    PyEval_RestoreThread(thread);
  }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace symmoe::bindings
