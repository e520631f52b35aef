#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pool/buffer.h"

// The texts by which ranks settle what becomes of their memory.
namespace symmoe {

std::string joined(const std::vector<uint32_t>& ordinals);

// The ordinals that are in all of the lists, each as joined() gives it.
std::vector<uint32_t> common(const std::vector<std::string>& lists);

std::string words_of(const Slot& slot);

// What a refused call needs before it can be captured; and whether a text has such a refusal.
std::string refusal_in_capture(size_t bytes, const std::string& what);
bool is_of_capture(const std::string& failures);

}  // namespace symmoe
