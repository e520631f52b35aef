#pragma once

#include "collectives/device/path.h"

namespace symmoe {

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

}  // namespace symmoe
