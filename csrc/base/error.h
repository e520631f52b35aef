#pragma once

#include <stdexcept>
#include <string>

namespace symmoe {

// The caller gave a wrong value: nothing was written, the group goes on. Becomes ValueError.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Everything that is not the caller's input derives from Error, which becomes symmoe.SymmoeError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The operating system refused something (the message carries the call and errno's text).
struct SystemError : Error {
  using Error::Error;
};

// No memory for a window.
struct OutOfMemory : Error {
  using Error::Error;
};

// A peer process ended, or closed the group, while this rank needed it.
struct PeerLost : Error {
  using Error::Error;
};

// A peer did not arrive before the deadline.
struct DeadlineExceeded : Error {
  using Error::Error;
};

// An earlier failure of a collective left the ranks in unknown states.
struct Poisoned : Error {
  using Error::Error;
};

// The group was closed, or the process is a fork of the one that made it.
struct Closed : Error {
  using Error::Error;
};

// Ranks made different calls in the same place.
struct Mismatch : Error {
  using Error::Error;
};

// A library or a feature is not there on this machine; the message says what was tried.
struct Unavailable : Error {
  using Error::Error;
};

// The device's runtime refused something.
struct DeviceError : Error {
  using Error::Error;
};

// NCCL refused something, or noticed a failure.
struct NcclError : Error {
  using Error::Error;
};

// The caller was told to stop while it waited (a signal). The binding knows what to raise.
struct Interrupted : Error {
  using Error::Error;
};

// SystemError with "<what>: <strerror(errno)>".
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace symmoe
