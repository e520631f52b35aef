#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "backends/host/instruments.h"
#include "backends/host/process.h"
#include "backends/host/refusal.h"

namespace symmoe::host {

// The way of every call into the back end: `body` may throw, the caller gets a status.
template <typename Body>
int call(const char* function, Body&& body) noexcept {
  try {
    watch_process();
    if (is_forked_child()) {
      throw Refusal{kForked, std::string(function) +
                                 ": this process is a fork of the one whose "
                                 "streams these are"};
    }
    meet_orders(function);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return kDeviceOk;
    } else {
      return body();
    }
  } catch (const Refusal& refusal) {
    return remember(refusal);
  } catch (const std::exception& error) {  // no memory for a queue, no thread for a stream
    return remember({kDeviceOutOfMemory, std::string(function) + ": " + error.what()});
  }
}

}  // namespace symmoe::host
