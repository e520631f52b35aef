#pragma once

#include <cstddef>

namespace symmoe::host {

// Device memory that other processes map by its descriptor (memfd), as strict as memory.h's: it
// comes filled with 0xFF, and ends at a page that nobody may touch. All of it is untouchable in
// this process when it was given back as often as it was allocated and mapped. A process that maps
// its own gets it at its own address, where a sanitizer sees what ranks that are threads do to each
// other.
void* allocate_shared(size_t bytes, int* descriptor);
void* map_shared(int descriptor, size_t bytes);
void release_shared(void* memory, size_t bytes);

}  // namespace symmoe::host
