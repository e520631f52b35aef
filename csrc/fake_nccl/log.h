#pragma once

#include <string>

#include "fake_nccl/fake_api.h"

namespace symmoe::fake {

// A call of this process that has neither communicator nor work; callers fill in what it has.
FakeNcclCall new_call(const char* operation);
void log_call(const FakeNcclCall& call);

// Something that real NCCL would not notice. Also goes to stderr.
void log_misuse(const std::string& text);

size_t copy_calls(FakeNcclCall* calls, size_t capacity);
size_t copy_misuses(char* text, size_t capacity);
void clear_logs();

}  // namespace symmoe::fake
