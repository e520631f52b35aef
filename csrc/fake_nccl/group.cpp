#include "fake_nccl/group.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/host/host_api.h"
#include "fake_nccl/log.h"
#include "fake_nccl/refusal.h"
#include "fake_nccl/work.h"

extern "C" const symmoe::DeviceTable* symmoe_device_table();  // the host back end's

namespace symmoe::fake {
namespace {

// What a group holds for one communicator.
struct Part {
  std::shared_ptr<Communicator> communicator;
  void* stream;
  std::vector<Operation> operations;
};

struct Group {
  int depth = 0;
  std::vector<Part> parts;
  std::optional<Refusal> refusal;
};

// Made by the first ncclGroupStart and gone with the last ncclGroupEnd: nothing is left to destroy
// when a thread ends.
thread_local Group* group = nullptr;

void require_device(int status, const char* what) {
  if (status == kDeviceOk) return;
  throw Refusal{kNcclUnhandledCudaError,
                std::string(what) + ": " + symmoe_device_table()->error_text(status)};
}

bool captured(void* stream) {
  CaptureState state{};
  require_device(symmoe_device_table()->capture_state(stream, &state), "state of the stream");
  return state.active;
}

void prepare(Part& part, bool in_graph) {
  uint64_t position = 0;
  for (Operation& operation : part.operations) {
    if (operation.message()) continue;
    operation.position = position++;
    operation.call = in_graph ? 0 : ++part.communicator->calls;
  }
  for (Operation& operation : part.operations) {
    const bool alone = position <= 1;
    const Presence& presence = part.communicator->presence;
    operation.operations = operation.message() ? 1 : position;
    choose_kernel(operation, part.communicator->windows, presence.rank(), presence.world(), alone);
  }
}

void log_operation(const Communicator& communicator, const Operation& operation, bool in_graph,
                   void* stream) {
  FakeNcclCall call = new_call(operation.name);
  call.communicator = communicator.presence.group_number();
  call.rank = communicator.presence.rank();
  call.count = operation.count;
  call.type = operation.type;
  call.kernel = operation.kernel;
  call.captured = in_graph ? 1 : 0;
  call.peer = operation.root;
  call.stream = stream;
  log_call(call);
}

void run_work(void* context) { static_cast<Work*>(context)->run(); }
void drop_work(void* context) { delete static_cast<Work*>(context); }

void queue(Part part) {
  part.communicator->presence.require_working();
  const bool in_graph = captured(part.stream);
  prepare(part, in_graph);
  auto work = std::make_unique<Work>(part.communicator, std::move(part.operations), in_graph);
  // Afterwards the work may have run and be gone.
  const std::vector<Operation> operations = work->operations();
  Work* const context = work.release();
  const int status = symmoe_host_enqueue(part.stream, run_work, drop_work, context);
  if (status != kDeviceOk) drop_work(context);
  require_device(status, "launch");
  for (const Operation& operation : operations) {
    log_operation(*part.communicator, operation, in_graph, part.stream);
  }
}

}  // namespace

void start_group() {
  if (group == nullptr) group = new Group;
  ++group->depth;
}

bool in_group() { return group != nullptr; }

void note_refusal_in_group(const Refusal& refusal) {
  if (!group->refusal) group->refusal = refusal;
}

void end_group() {
  if (group == nullptr) throw Refusal{kNcclInvalidUsage, "there is no group to end"};
  if (--group->depth > 0) return;
  const std::unique_ptr<Group> ended(std::exchange(group, nullptr));
  if (ended->refusal) throw *ended->refusal;
  for (const Part& part : ended->parts) queue(part);
}

void submit(const std::shared_ptr<Communicator>& communicator, Operation operation, void* stream) {
  if (!in_group()) return queue({communicator, stream, {std::move(operation)}});
  for (Part& part : group->parts) {
    if (part.communicator != communicator) continue;
    if (part.stream != stream) {
      throw Refusal{kNcclInvalidUsage,
                    "the fake takes one stream per communicator in a group, not two"};
    }
    part.operations.push_back(std::move(operation));
    return;
  }
  group->parts.push_back({communicator, stream, {std::move(operation)}});
}

}  // namespace symmoe::fake
