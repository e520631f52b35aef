// Looks at the real NCCL: nccl_real_library PATH. Prints what it found, one "name value" a line,
// and fails where the library does not behave as the core expects.

#include <cstdio>

#include "base/error.h"
#include "check.h"
#include "runtime/nccl/capabilities.h"
#include "runtime/nccl/communicator.h"
#include "runtime/nccl/library.h"

namespace symmoe {
namespace {

void look_at(const char* path) {
  const auto library = NcclLibrary::open({{path, false, "argument"}});
  const NcclFunctions& nccl = library->functions();
  std::printf("version %d\n", library->version());
  std::printf("path %s\n", library->path().c_str());

  // Once loaded it is found by its name alone.
  const auto again = NcclLibrary::open({{"libnccl.so.2", true, "this process"}});
  CHECK_EQ(again->path(), library->path());
  CHECK_EQ(again->functions().reduce_scatter == nccl.reduce_scatter, true);

  const NcclCapabilities found = capabilities_of(library->version(), nccl, false);
  std::printf("windows %d\ndirect %d\npeer_pointers %d\n", found.windows, found.direct,
              found.peer_pointers);
  for (const std::string& reason : {found.no_windows, found.no_direct, found.no_peer_pointers}) {
    if (!reason.empty()) std::printf("reason %s\n", reason.c_str());
  }

  const Communicator::Id first = Communicator::make_id(*library);
  CHECK(first != Communicator::make_id(*library));
  CHECK(first != Communicator::Id{});

  for (int result = kNcclSuccess; result <= kNcclInProgress; ++result) {
    const char* const text = nccl.get_error_string(static_cast<NcclResult>(result));
    CHECK(text != nullptr && *text != '\0');
  }

  if (found.peer_pointers) {
    // What is no window is refused, with a GPU or without.
    void* pointer = nullptr;
    CHECK(nccl.get_lsa_device_pointer(nullptr, 0, 0, &pointer) != kNcclSuccess);
    CHECK(pointer == nullptr);
  }

  void* memory = nullptr;
  const NcclResult allocated = nccl.mem_alloc(&memory, 4096);
  if (allocated == kNcclSuccess) {
    CHECK(memory != nullptr);
    CHECK_EQ(nccl.mem_free(memory), kNcclSuccess);
    std::printf("memory yes\n");
    return;
  }
  // Without a GPU: an error with a text, and no crash; the library stays usable.
  const char* const last = nccl.get_last_error(nullptr);
  std::printf("memory no: %s (%d): %s\n", nccl.get_error_string(allocated), allocated,
              last == nullptr ? "" : last);
  CHECK(last != nullptr && *last != '\0');
  NcclComm comm = nullptr;
  NcclUniqueId id{};
  CHECK_EQ(nccl.get_unique_id(&id), kNcclSuccess);
  CHECK(nccl.comm_init_rank(&comm, 1, id, 0) != kNcclSuccess);
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    symmoe::look_at(argv[1]);
    return 0;
  } catch (const symmoe::check::Failure&) {
  } catch (const symmoe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
