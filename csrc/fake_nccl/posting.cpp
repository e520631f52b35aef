#include "fake_nccl/posting.h"

#include <cstring>
#include <tuple>

#include "fake_nccl/names.h"

namespace symmoe::fake {
namespace {

auto signature(const Posting& posting) {
  return std::tie(posting.operation, posting.count, posting.type, posting.red_op, posting.root,
                  posting.kernel, posting.call, posting.position, posting.operations,
                  posting.window, posting.offset, posting.ordinary_receive);
}

// Windows have to go in the same order everywhere. 0: a rank that cannot say.
bool same_history(const Posting& left, const Posting& right) {
  return left.deregistered == 0 || right.deregistered == 0 ||
         left.deregistered == right.deregistered;
}

}  // namespace

Posting new_posting(const char* operation) {
  Posting posting{};
  std::strncpy(posting.operation.data(), operation, posting.operation.size() - 1);
  posting.type = -1;
  posting.red_op = -1;
  posting.root = -1;
  posting.kernel = kFakeNcclNoKernel;
  return posting;
}

bool agree(const Posting& left, const Posting& right) {
  return signature(left) == signature(right) && same_history(left, right);
}

std::string describe(const Posting& posting) {
  std::string text = posting.operation.data();
  text += " of " + std::to_string(posting.count);
  if (posting.type >= 0)
    text += std::string(" ") + name_of(static_cast<NcclDataType>(posting.type));
  if (posting.red_op >= 0)
    text += std::string(" (") + name_of(static_cast<NcclRedOp>(posting.red_op)) + ")";
  if (posting.root >= 0) text += ", root " + std::to_string(posting.root);
  if (posting.call > 0) text += ", call " + std::to_string(posting.call);
  if (posting.operations > 1) {
    text += ", operation " + std::to_string(posting.position + 1) + " of " +
            std::to_string(posting.operations) + " in a group";
  }
  if (posting.kernel != kFakeNcclNoKernel)
    text += std::string(", kernel ") + kernel_name(posting.kernel);
  if (posting.window > 0) {
    text += ", window " + std::to_string(posting.window) + " at " + std::to_string(posting.offset);
    text += posting.ordinary_receive != 0 ? " into ordinary memory" : " into a window";
  }
  if (posting.deregistered > 0) {
    text += ", after deregistrations with the mark " + std::to_string(posting.deregistered);
  }
  return text;
}

}  // namespace symmoe::fake
