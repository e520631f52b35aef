#pragma once

#include "fake_nccl/fake_api.h"
#include "runtime/nccl/abi.h"

// Names for messages.
namespace symmoe::fake {

constexpr const char* name_of(NcclDataType type) {
  switch (type) {
    case kNcclInt8:
      return "int8";
    case kNcclUint8:
      return "uint8";
    case kNcclInt32:
      return "int32";
    case kNcclUint32:
      return "uint32";
    case kNcclInt64:
      return "int64";
    case kNcclUint64:
      return "uint64";
    case kNcclFloat16:
      return "float16";
    case kNcclFloat32:
      return "float32";
    case kNcclFloat64:
      return "float64";
    case kNcclBfloat16:
      return "bfloat16";
  }
  return "elements of unknown type";
}

constexpr const char* name_of(NcclRedOp op) {
  switch (op) {
    case kNcclSum:
      return "sum";
    case kNcclProd:
      return "prod";
    case kNcclMax:
      return "max";
    case kNcclMin:
      return "min";
    case kNcclAvg:
      return "avg";
  }
  return "unknown operation";
}

constexpr const char* kernel_name(int kernel) {
  switch (kernel) {
    case kFakeNcclOrdinary:
      return "ordinary";
    case kFakeNcclSymmetricLL:
      return "symmetric LL";
    case kFakeNcclSymmetricLD:
      return "symmetric LD";
    default:
      return "none";
  }
}

}  // namespace symmoe::fake
