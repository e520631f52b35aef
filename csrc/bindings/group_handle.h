#pragma once

#include "bindings/handle.h"
#include "collectives/shared_group.h"

namespace symmoe::bindings {

// What Python holds of a group of processes that share memory.
class GroupHandle : public Handle<SharedGroup> {
 public:
  // Runs `body(engine)` without the interpreter lock.
  template <typename Body>
  auto call(Body&& body) const {
    return with_group([&](SharedGroup& group) { return body(group.engine()); });
  }

  // Runs `body(group)` without the interpreter lock.
  template <typename Body>
  auto with_group(Body&& body) const {
    return Handle::call(body);
  }

  // Memory under live views stays.
  void close() {
    if (empty()) return;
    group()->engine().close();
    let_go();
  }
};

}  // namespace symmoe::bindings
