#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace symmoe {

void throw_errno(const std::string& what) {
  throw SystemError(what + ": " + std::system_category().message(errno));
}

}  // namespace symmoe
