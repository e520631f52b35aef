#include "windows/random_hex.h"

#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "base/error.h"

namespace symmoe {

std::string random_hex(size_t bytes) {
  std::vector<unsigned char> raw(bytes);
  for (size_t have = 0; have < bytes;) {
    const ssize_t got = getrandom(raw.data() + have, bytes - have, 0);
    if (got < 0 && errno != EINTR) throw_errno("getrandom");
    if (got > 0) have += static_cast<size_t>(got);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : raw) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace symmoe
