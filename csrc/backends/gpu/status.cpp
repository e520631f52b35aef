#include "backends/gpu/status.h"

#include <cstdio>

namespace symmoe::gpu {
namespace {

thread_local Error last_error = SYMMOE_GPU(Success);

bool is_about_capture(Error error) {
  switch (error) {
    case SYMMOE_GPU(ErrorStreamCaptureUnsupported):
    case SYMMOE_GPU(ErrorStreamCaptureInvalidated):
    case SYMMOE_GPU(ErrorStreamCaptureMerge):
    case SYMMOE_GPU(ErrorStreamCaptureUnmatched):
    case SYMMOE_GPU(ErrorStreamCaptureUnjoined):
    case SYMMOE_GPU(ErrorStreamCaptureIsolation):
    case SYMMOE_GPU(ErrorStreamCaptureImplicit):
    case SYMMOE_GPU(ErrorStreamCaptureWrongThread):
    case SYMMOE_GPU(ErrorCapturedEvent):
      return true;
    default:
      return false;
  }
}

// The runtime puts a missing driver down to its version.
bool has_driver() {
  int version = 0;
  const Error error = SYMMOE_GPU(DriverGetVersion)(&version);
  static_cast<void>(SYMMOE_GPU(GetLastError)());
  return error == SYMMOE_GPU(Success) && version != 0;
}

}  // namespace

int status_of(Error error) {
  if (error == SYMMOE_GPU(Success)) return kDeviceOk;
  last_error = error;
  static_cast<void>(SYMMOE_GPU(GetLastError)());
  if (error == SYMMOE_GPU(ErrorNotReady)) return kDeviceNotReady;
  if (error == kOutOfMemory) return kDeviceOutOfMemory;
  if (is_about_capture(error)) return kDeviceInvalidCapture;
  return kVendorStatus + static_cast<int>(error);
}

const char* text_of(int status) {
  if (status == kDeviceOk) return "no error";
  const Error error =
      status >= kVendorStatus ? static_cast<Error>(status - kVendorStatus) : last_error;
  thread_local char text[256];
  if (error == SYMMOE_GPU(ErrorInsufficientDriver) && !has_driver()) {
    std::snprintf(text, sizeof(text), "no %s", kDriver);
  } else {
    std::snprintf(text, sizeof(text), "%s (%s, %d)", SYMMOE_GPU(GetErrorString)(error),
                  SYMMOE_GPU(GetErrorName)(error), static_cast<int>(error));
  }
  return text;
}

}  // namespace symmoe::gpu
