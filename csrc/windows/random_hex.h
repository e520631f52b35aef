#pragma once

#include <cstddef>
#include <string>

namespace symmoe {

// `bytes` random bytes from the kernel, as lower-case hexadecimal digits. Cannot be guessed.
std::string random_hex(size_t bytes);

}  // namespace symmoe
