#include "runtime/nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include "base/error.h"

namespace symmoe {
namespace {

// Puts the symbol's address into *function; false if the library has none.
template <typename Function>
bool find(void* handle, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, symbol));
  return *function != nullptr;
}

// The name of a function that every version has and this library lacks; null if it has them all.
const char* find_functions(void* handle, NcclFunctions* functions) {
  NcclFunctions& f = *functions;
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto* function) {
    if (!find(handle, symbol, function) && missing == nullptr) missing = symbol;
  };
  need("ncclGetVersion", &f.get_version);
  need("ncclGetErrorString", &f.get_error_string);
  need("ncclGetUniqueId", &f.get_unique_id);
  need("ncclCommInitRank", &f.comm_init_rank);
  need("ncclCommDestroy", &f.comm_destroy);
  need("ncclCommAbort", &f.comm_abort);
  need("ncclCommGetAsyncError", &f.comm_get_async_error);
  need("ncclCommCount", &f.comm_count);
  need("ncclCommCuDevice", &f.comm_cu_device);
  need("ncclCommUserRank", &f.comm_user_rank);
  need("ncclGroupStart", &f.group_start);
  need("ncclGroupEnd", &f.group_end);
  need("ncclReduceScatter", &f.reduce_scatter);
  need("ncclAllGather", &f.all_gather);
  need("ncclReduce", &f.reduce);
  need("ncclBroadcast", &f.broadcast);
  need("ncclSend", &f.send);
  need("ncclRecv", &f.receive);

  find(handle, "ncclGetLastError", &f.get_last_error);
  find(handle, "ncclMemAlloc", &f.mem_alloc);
  find(handle, "ncclMemFree", &f.mem_free);
  find(handle, "ncclCommWindowRegister", &f.window_register);
  find(handle, "ncclCommWindowDeregister", &f.window_deregister);
  find(handle, "ncclGetLsaDevicePointer", &f.get_lsa_device_pointer);
  return missing;
}

std::string path_of(void* handle, const std::string& asked_for) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr)
    return asked_for;
  return map->l_name;
}

std::string open_failure(const NcclLibrary::Candidate& candidate) {
  const char* const reason = dlerror();
  if (candidate.only_if_loaded) return "not loaded in this process";
  return reason != nullptr ? reason : "dlopen failed";
}

}  // namespace

std::string nccl_version_text(int version) {
  const int thousands = version < 10000 ? 1000 : 10000;
  return std::to_string(version / thousands) + "." + std::to_string(version % thousands / 100) +
         "." + std::to_string(version % 100);
}

std::vector<NcclLibrary::Candidate> NcclLibrary::usual_candidates(
    const std::string& setting, const std::vector<std::string>& wheels) {
  if (!setting.empty()) return {{setting, false, "SYMMOE_NCCL_LIB"}};
  std::vector<Candidate> candidates = {{"libnccl.so.2", true, "this process"},
                                       {"librccl.so.1", true, "this process"}};
  for (const std::string& wheel : wheels) candidates.push_back({wheel, false, "pip"});
  candidates.push_back({"libnccl.so.2", false, "system"});
  candidates.push_back({"librccl.so.1", false, "system"});
  return candidates;
}

std::shared_ptr<const NcclLibrary> NcclLibrary::open(const std::vector<Candidate>& candidates) {
  std::string failures;
  for (const Candidate& candidate : candidates) {
    const auto reject = [&](const std::string& why) {
      failures += "; " + candidate.path + " (" + candidate.origin + "): " + why;
    };
    const int mode = RTLD_NOW | RTLD_LOCAL | (candidate.only_if_loaded ? RTLD_NOLOAD : 0);
    void* const handle = dlopen(candidate.path.c_str(), mode);
    if (handle == nullptr) {
      reject(open_failure(candidate));
      continue;
    }
    NcclLibrary library;
    if (const char* missing = find_functions(handle, &library.functions_)) {
      reject(std::string("it has no ") + missing);
      dlclose(handle);
      continue;
    }
    const NcclResult result = library.functions_.get_version(&library.version_);
    if (result != kNcclSuccess) {
      reject("ncclGetVersion failed with " + std::to_string(result));
      dlclose(handle);
      continue;
    }
    library.path_ = path_of(handle, candidate.path);
    library.origin_ = candidate.origin;
    return std::make_shared<const NcclLibrary>(std::move(library));
  }
  throw Unavailable("no NCCL" + (failures.empty() ? "; nowhere to look" : failures));
}

}  // namespace symmoe
