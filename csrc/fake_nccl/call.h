#pragma once

#include <exception>
#include <string>
#include <utility>

#include "fake_nccl/communicator.h"
#include "fake_nccl/handles.h"
#include "fake_nccl/injection.h"
#include "fake_nccl/refusal.h"

// What all functions of the C interface have in common.
namespace symmoe::fake {

Handles<Communicator>& communicators();
Handles<Window>& windows();

// The calling thread's last message, for ncclGetLastError.
void set_last_message(const std::string& text);
const char* last_message();

// Carries out a failure that is due and concerns the host's call, not the queued work. `presence`:
// null where the call has no communicator. Throws Refusal.
void carry_out(const Failure& failure, const char* name, Presence* presence);

// Since when NCCL has the function; older ones refuse it, as they would not have the symbol.
void require_version(int since, const char* name);

// The way of every call: `body` may throw, the caller gets a code.
template <typename Body>
NcclResult call(const char* name, Body&& body) noexcept {
  try {
    body();
    return kNcclSuccess;
  } catch (const Refusal& refusal) {
    set_last_message(std::string(name) + ": " + refusal.text);
    return refusal.code;
  } catch (const std::exception& error) {
    set_last_message(std::string(name) + ": " + error.what());
    return kNcclSystemError;
  }
}

}  // namespace symmoe::fake
