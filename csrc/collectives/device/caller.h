#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "kernels/device/launch.h"

namespace symmoe {

// Who is to be named in an error. The text is made when there is one: calls are too short for it.
struct Caller {
  const char* operation;
  int rank = -1;  // -1: of no group

  // "reduce_scatter, rank 1".
  std::string text() const {
    return rank < 0 ? operation : std::string(operation) + ", rank " + std::to_string(rank);
  }
};

// Throws InvalidArgument unless `address` is a multiple of its elements' size. A kernel that meets
// any other ends all work of the process on the device.
void require_aligned(const Caller& caller, const char* name, const void* address, size_t element);

// The same for all that a top-k sum reads and writes.
void require_aligned(const Caller& caller, const kernels::TopkReduceLaunch& launch);

// Throws InvalidArgument if a top-k sum lacks the memory of its input or output.
void require_memory(const Caller& caller, const kernels::TopkReduceLaunch& launch);

// Throws InvalidArgument if a top-k sum would write `bytes` of output over its input.
void require_apart(const Caller& caller, const kernels::TopkReduceLaunch& launch, size_t bytes);

// Throws InvalidArgument unless an epilogue's steps can be done to these rows, Unavailable if their
// kernel cannot hold so long a row.
void require_epilogue(const Caller& caller, const kernels::Epilogue& steps, DType type,
                      int64_t rows, int64_t hidden);

}  // namespace symmoe
