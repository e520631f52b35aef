#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/nccl/functions.h"

namespace symmoe {

// "2.30.7" for 23007.
std::string nccl_version_text(int version);

// An NCCL (or RCCL) that was opened at run time. It stays loaded for the life of the process, since
// its threads would not survive its unloading.
class NcclLibrary {
 public:
  struct Candidate {
    std::string path;             // as for dlopen: a path or a soname
    bool only_if_loaded = false;  // take it only if it is in the process already
    std::string origin;           // where the candidate comes from, for messages
  };

  // Where to look, in this order: the setting (SYMMOE_NCCL_LIB; if there is one, nowhere else), the
  // library that is in the process already (torch's, most often), the given paths of pip's wheels,
  // the system.
  static std::vector<Candidate> usual_candidates(const std::string& setting,
                                                 const std::vector<std::string>& wheels);

  // The first candidate that opens and has what every version has. Throws Unavailable naming each
  // candidate and why it was not taken.
  static std::shared_ptr<const NcclLibrary> open(const std::vector<Candidate>& candidates);

  int version() const { return version_; }               // as ncclGetVersion says: 23007
  const std::string& path() const { return path_; }      // of the file that was opened
  const std::string& origin() const { return origin_; }  // of the candidate
  const NcclFunctions& functions() const { return functions_; }

 private:
  NcclLibrary() = default;

  int version_ = 0;
  std::string path_;
  std::string origin_;
  NcclFunctions functions_{};
};

}  // namespace symmoe
