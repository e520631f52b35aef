#include "fake_nccl/control.h"

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "fake_nccl/refusal.h"

namespace symmoe::fake {
namespace {

constexpr uint64_t kMagic = 0x6c63636e656b6166;  // "fakenccl"

// What the bytes of a unique id mean.
struct IdContent {
  uint64_t magic;
  uint64_t cookie;
  ProcessIdentity maker;
  int32_t descriptor;
};
static_assert(sizeof(IdContent) <= sizeof(NcclUniqueId));

struct Blocks {
  std::mutex mutex;
  // Made here and not used up yet: the maker keeps them alive.
  std::map<uint64_t, std::shared_ptr<ControlBlock>> made;
  std::map<uint64_t, std::weak_ptr<ControlBlock>> attached;
  std::map<uint64_t, int> numbers;
};

// Never destroyed: streams may still run when the process ends.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

uint64_t random_cookie() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

IdContent content_of(const NcclUniqueId& id) {
  IdContent content;
  std::memcpy(&content, id.internal, sizeof(content));
  if (content.magic != kMagic) {
    throw Refusal{kNcclInvalidArgument, "the unique id was not made by this library"};
  }
  return content;
}

// Attached before, or made, in this process; null if neither.
std::shared_ptr<ControlBlock> known_locked(Blocks& all, uint64_t cookie) {
  if (std::shared_ptr<ControlBlock> block = all.attached[cookie].lock()) return block;
  const auto found = all.made.find(cookie);
  return found != all.made.end() ? found->second : nullptr;
}

}  // namespace

NcclUniqueId make_unique_id() {
  auto block =
      std::make_shared<ControlBlock>(SharedMemory::create(sizeof(Control), "symmoe fake nccl"));
  const uint64_t cookie = random_cookie();
  (*block)->cookie = cookie;
  const IdContent content{kMagic, cookie, this_process(), block->descriptor()};
  NcclUniqueId id{};
  std::memcpy(id.internal, &content, sizeof(content));
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  all.made[cookie] = std::move(block);
  return id;
}

std::shared_ptr<ControlBlock> attach(const NcclUniqueId& id) {
  const IdContent content = content_of(id);
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<ControlBlock> block = known_locked(all, content.cookie);
  if (block == nullptr) {
    if (!alive(content.maker)) {
      throw Refusal{kNcclRemoteError, "process " + std::to_string(content.maker.pid) +
                                          ", which made the unique id, has ended"};
    }
    block = std::make_shared<ControlBlock>(
        SharedMemory::attach(content.maker.pid, content.descriptor, sizeof(Control)));
    if ((*block)->cookie != content.cookie) {
      throw Refusal{kNcclInvalidArgument, "the unique id was used up before"};
    }
  }
  all.attached[content.cookie] = block;
  int& number = all.numbers[content.cookie];
  if (number == 0) number = static_cast<int>(all.numbers.size());
  if (block->number() == 0) block->set_number(number);
  return block;
}

void retire(const NcclUniqueId& id) {
  const IdContent content = content_of(id);
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  const auto found = all.made.find(content.cookie);
  if (found == all.made.end()) return;
  found->second->close_descriptor();
  all.made.erase(found);
}

}  // namespace symmoe::fake
