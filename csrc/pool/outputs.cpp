#include "pool/outputs.h"

namespace symmoe {

std::string why_no_output(const Buffer* buffer, size_t offset, size_t bytes, int lane) {
  if (buffer == nullptr || bytes > buffer->window.bytes - offset) {
    return "overlaps a buffer of the pool and does not lie in a window; it must be the caller's "
           "memory";
  }
  const Slot& slot = buffer->slot;
  if (slot.use != Use::kAcquired || slot.role != Role::kDispatch || slot.lane != lane) {
    const auto text = [](Role role, int number) {
      return std::string(name_of(role)) + ", lane " + std::to_string(number);
    };
    return "overlaps a window" + std::string(slot.use == Use::kStage ? " that stages" : "") +
           " for " + text(slot.role, slot.lane) +
           "; it must be the caller's memory, or lie in one acquired for " +
           text(Role::kDispatch, lane);
  }
  return why_not_now(*buffer);
}

std::string why_not_now(const Buffer& window) {
  if (window.retired.load(std::memory_order_relaxed)) {
    return "overlaps a window that was outgrown: acquire it again";
  }
  if (!window.armed.load(std::memory_order_relaxed)) {
    return "overlaps a window that was gathered already: acquire it again before it is written";
  }
  return "";
}

}  // namespace symmoe
