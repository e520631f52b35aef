#include "collectives/device/memory_words.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace symmoe {

std::string joined(const std::vector<uint32_t>& ordinals) {
  std::string text;
  for (const uint32_t ordinal : ordinals) text += std::to_string(ordinal) + " ";
  return text;
}

// What is in all of the lists.
std::vector<uint32_t> common(const std::vector<std::string>& lists) {
  std::vector<uint32_t> result;
  for (size_t list = 0; list < lists.size(); ++list) {
    std::istringstream words(lists[list]);
    std::vector<uint32_t> ordinals;
    for (uint32_t ordinal = 0; words >> ordinal;) ordinals.push_back(ordinal);
    if (list == 0) {
      result = std::move(ordinals);
      continue;
    }
    std::erase_if(result, [&](uint32_t ordinal) {
      return std::find(ordinals.begin(), ordinals.end(), ordinal) == ordinals.end();
    });
  }
  return result;
}

// What a refused call needs before it can be captured.
std::string refusal_in_capture(size_t bytes, const std::string& what) {
  return "a stream is being captured, when no memory can be made; call reserve() before the "
         "capture, for at least " +
         std::to_string(bytes) + " bytes (" + what + ")";
}

bool is_of_capture(const std::string& failures) {
  return failures.find("is being captured") != std::string::npos;
}

std::string words_of(const Slot& slot) {
  return std::string(name_of(slot.role)) + (slot.use == Use::kStage ? " (stage)" : "") +
         " lane=" + std::to_string(slot.lane);
}

}  // namespace symmoe
