#pragma once

#include <cstdint>

// What every kernel of an epilogue agrees on, on processors and devices. No function stands here:
// files of several instruction sets see it (see cpu/isa/kernel_table.h).
namespace symmoe::kernels {

// What a row may be quantised to. The numbers are part of the Python bindings.
enum class Quantized : uint8_t { kNone = 0, kInt8 = 1, kFloat8 = 2 };
constexpr int kQuantized = 3;

// Partial sums of a row's squares: lane j adds columns j, j + kSquareLanes, ... in this order; then
// lane j plus lane j + half of the lanes, and again.
constexpr int kSquareLanes = 64;

}  // namespace symmoe::kernels
