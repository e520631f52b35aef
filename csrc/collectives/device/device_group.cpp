#include "collectives/device/device_group.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "kernels/device/peer_grid.h"

namespace symmoe {
namespace {

std::string hex_of(const Communicator::Id& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : id) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

Communicator::Id id_of(const std::string& hex) {
  Communicator::Id id{};
  if (hex.size() != 2 * id.size()) throw Error("init: rank 0 gave no NCCL id");
  for (size_t byte = 0; byte < id.size(); ++byte) {
    id[byte] = static_cast<char>(std::stoi(hex.substr(2 * byte, 2), nullptr, 16));
  }
  return id;
}

}  // namespace

DeviceGroup::DeviceGroup(int rank, int world, const DeviceGroupConfig& config,
                         std::unique_ptr<Agreement> agreement)
    : rank_(rank), world_(world), agreement_(std::move(agreement)), peers_(config.pids) {
  open_device(config);
  if (world_ == 1) {
    no_communicator_ = "a world of one needs none";
  } else {
    open_nccl(config);
    if (no_communicator_.empty()) connect(config);
  }
  DeviceParts parts{.device = device_,
                    .communicator = communicator_,
                    .plain = plain_,
                    .no_communicator = no_communicator_,
                    .no_windows = config.no_windows,
                    .nccl = capabilities_,
                    .blocks = blocks_,
                    .agreement = agreement_.get(),
                    .peers = &peers_};
  DeviceEngineConfig engine = config.engine;
  engine.rates = rates_of(device_->properties().major);
  std::string failure;
  try {
    engine_ = std::make_unique<DeviceEngine>(rank_, world_, std::move(parts), engine);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  // A rank without one would leave the others waiting for its part in the first window.
  const Answers answers = agree(*agreement_, rank_, "engine", failure);
  if (!answers.failures.empty()) throw DeviceError("init: " + answers.failures);
  engine_->start();
  no_communicator_ = engine_->no_communicator();
}

void DeviceGroup::open_device(const DeviceGroupConfig& config) {
  std::string failure;
  std::string kind = "none";
  int multiprocessors = 0;
  try {
    device_ = Device::open(config.back_end, config.ordinal);
    // Costs are predicted from these: they have to be the same for all ranks.
    const DeviceProperties& mine = device_->properties();
    kind = std::string(device_->kind()) + " " + std::to_string(mine.major) + "." +
           std::to_string(mine.minor);
    multiprocessors = mine.multiprocessors;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const Answers kinds = agree(*agreement_, rank_, "device", failure, "device " + kind);
  if (!kinds.failures.empty()) throw Unavailable("init: " + kinds.failures);
  for (size_t other = 0; other < kinds.details.size(); ++other) {
    if (kinds.details[other] == kinds.details.front()) continue;
    throw Mismatch("init, rank " + std::to_string(rank_) +
                   ": devices differ. Rank 0: " + kinds.details.front() + ". Rank " +
                   std::to_string(other) + ": " + kinds.details[other]);
  }
  // A part of a GPU counts as the smaller one that it is: the ranks' kernels meet block by block.
  const Answers counts =
      agree(*agreement_, rank_, "multiprocessors", "", std::to_string(multiprocessors));
  int fewest = multiprocessors;
  for (const std::string& count : counts.details) fewest = std::min(fewest, std::stoi(count));
  // All lanes' kernels may wait at the same time, and each needs all of its blocks to be running.
  blocks_ = std::clamp(fewest * kernels::kPeerBlocksAtOnce / kMaxLanes, 1, kernels::kMaxBlocks);
}

void DeviceGroup::open_nccl(const DeviceGroupConfig& config) {
  std::string failure;
  std::string detail;
  try {
    library_ = NcclLibrary::open(config.nccl);
    detail = nccl_version_text(library_->version());
    capabilities_ =
        capabilities_of(library_->version(), library_->functions(), config.allow_unsafe_nccl);
    if (config.borrowed != nullptr) detail += " borrowed";
  } catch (const Unavailable& error) {
    failure = error.what();
  }
  const Answers answers = agree(*agreement_, rank_, "nccl", failure, detail);
  no_communicator_ = answers.failures;
  if (!no_communicator_.empty()) return;
  for (size_t other = 0; other < answers.details.size(); ++other) {
    if (answers.details[other] == answers.details.front()) continue;
    no_communicator_ = "ranks have different NCCLs: rank 0 " + answers.details.front() + ", rank " +
                       std::to_string(other) + " " + answers.details[other];
    return;
  }
}

void DeviceGroup::connect(const DeviceGroupConfig& config) {
  const bool wants_plain =
      capabilities_.no_direct.empty() && config.engine.tuning.wants(PathKind::kPlain);
  std::string failure;
  const bool borrows = config.borrowed != nullptr;
  // Only those that will be used: NCCL keeps a thread for each until all ranks have come.
  std::string ids;
  try {
    if (rank_ == 0 && !borrows) ids += hex_of(Communicator::make_id(*library_));
    if (rank_ == 0 && wants_plain) ids += hex_of(Communicator::make_id(*library_));
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const Answers answers = agree(*agreement_, rank_, "nccl ids", failure, ids);
  no_communicator_ = answers.failures;
  if (!no_communicator_.empty()) return;

  std::string left = answers.details.front();
  const auto next_id = [&left] {
    const size_t length = std::min(left.size(), 2 * sizeof(Communicator::Id));
    const Communicator::Id id = id_of(left.substr(0, length));
    left.erase(0, length);
    return id;
  };
  try {
    if (borrows) {
      communicator_ = Communicator::borrow(library_, device_, config.borrowed);
      if (communicator_->rank() != rank_ || communicator_->world() != world_) {
        failure = "the given communicator has rank " + std::to_string(communicator_->rank()) +
                  " of " + std::to_string(communicator_->world()) + ", the process group rank " +
                  std::to_string(rank_) + " of " + std::to_string(world_);
      }
    } else {
      communicator_ = std::make_shared<Communicator>(library_, device_, next_id(), rank_, world_);
    }
    if (wants_plain && failure.empty()) {
      plain_ = std::make_shared<Communicator>(library_, device_, next_id(), rank_, world_);
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  no_communicator_ = agree(*agreement_, rank_, "nccl connected", failure).failures;
  if (no_communicator_.empty()) return;
  communicator_.reset();
  plain_.reset();
}

}  // namespace symmoe
