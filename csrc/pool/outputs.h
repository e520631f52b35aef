#pragma once

#include <cstddef>
#include <string>

#include "pool/buffer.h"

namespace symmoe {

// What is wrong with memory that overlaps the pool's as the output of a call of a lane; empty:
// nothing. It may lie in an acquired window for dispatch, from which, or in which, rows will be
// gathered. `buffer` is the one that it begins in, at `offset`; null: in none.
std::string why_no_output(const Buffer* buffer, size_t offset, size_t bytes, int lane);

// Why an acquired window must not be written now; empty if it may.
std::string why_not_now(const Buffer& window);

}  // namespace symmoe
