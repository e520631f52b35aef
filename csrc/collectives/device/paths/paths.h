#pragma once

#include "collectives/device/path.h"

namespace symmoe {

// Why only a kernel that reads the sizes can do it; empty if they are known on the host.
std::string why_sizes_forbid(const Problem& problem);

class LocalPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kLocal; }
  const char* name() const override { return "local"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  void run(const Transfer& transfer) const override;
};

class DirectPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kDirect; }
  const char* name() const override { return "direct"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  bool sends_from_window() const override { return true; }
  void run(const Transfer& transfer) const override;
};

class PlainPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kPlain; }
  const char* name() const override { return "plain"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  void run(const Transfer& transfer) const override;
};

class GroupedPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kGrouped; }
  const char* name() const override { return "grouped"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  void run(const Transfer& transfer) const override;
};

class OrderedPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kOrdered; }
  const char* name() const override { return "ordered"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  size_t scratch_bytes(const Problem& problem) const override;
  void run(const Transfer& transfer) const override;
};

// Why no kernel of our own can do it; empty if one can.
std::string why_no_own_kernel(const Problem& problem, const Resources& resources);

// The own rows out of all ranks' windows, with the call's epilogue.
void pull_rows(const Transfer& transfer);

class PullPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kPull; }
  const char* name() const override { return "pull"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  bool sends_from_window() const override { return true; }
  bool takes_epilogue() const override { return true; }
  void run(const Transfer& transfer) const override;
};

class RoutedPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kRouted; }
  const char* name() const override { return "routed"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  bool sends_from_window() const override { return true; }
  bool takes_epilogue() const override { return true; }
  void run(const Transfer& transfer) const override;
};

class FusedPath final : public DevicePath {
 public:
  PathKind kind() const override { return PathKind::kFused; }
  const char* name() const override { return "fused"; }
  std::string refusal(const Problem& problem, const Resources& resources) const override;
  bool sends_from_window() const override { return true; }
  void run(const Transfer& transfer) const override;
};

}  // namespace symmoe
