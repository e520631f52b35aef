#include "backends/host/host_api.h"

#include <ctime>
#include <memory>

#include "backends/host/call.h"
#include "backends/host/instruments.h"
#include "backends/host/memory.h"
#include "backends/host/runtime.h"

using namespace symmoe::host;
using symmoe::CaptureMode;
using symmoe::StreamHandle;

namespace {

class ForeignWork : public Work {
 public:
  ForeignWork(void (*what)(void*), void (*after)(void*), void* context)
      : run_(what), drop_(after), context_(context) {}
  ~ForeignWork() override {
    if (drop_ != nullptr) drop_(context_);
  }
  void run() override { run_(context_); }
  void disown() { drop_ = nullptr; }

 private:
  void (*run_)(void*);
  void (*drop_)(void*);
  void* context_;
};

void sleep_us(int64_t microseconds) {
  const timespec duration{microseconds / 1'000'000, microseconds % 1'000'000 * 1000};
  nanosleep(&duration, nullptr);
}

}  // namespace

int symmoe_host_enqueue(StreamHandle stream, void (*run)(void*), void (*drop)(void*),
                        void* context) {
  return call("enqueue", [&] {
    const auto work = std::make_shared<ForeignWork>(run, drop, context);
    try {
      Runtime::instance().enqueue(stream, work);
    } catch (...) {
      work->disown();
      throw;
    }
  });
}

int symmoe_host_begin_capture(StreamHandle stream, int mode) {
  return call("begin_capture",
              [&] { Runtime::instance().begin_capture(stream, static_cast<CaptureMode>(mode)); });
}

int symmoe_host_end_capture(StreamHandle stream, HostGraph* graph) {
  return call("end_capture", [&] {
    *graph = nullptr;
    *graph = Runtime::instance().end_capture(stream);
  });
}

int symmoe_host_launch_graph(HostGraph graph, StreamHandle stream) {
  return call("launch_graph", [&] { Runtime::instance().launch_graph(graph, stream); });
}

int symmoe_host_destroy_graph(HostGraph graph) {
  return call("destroy_graph", [&] { Runtime::instance().destroy_graph(graph); });
}

int symmoe_host_delay(StreamHandle stream, int64_t microseconds) {
  return call("delay", [&] {
    Runtime::instance().enqueue(stream, make_work([=] { sleep_us(microseconds); }));
  });
}

int symmoe_host_synchronize() {
  return call("synchronize", [&] { Runtime::instance().synchronize_all(); });
}

void symmoe_host_limit_memory(size_t bytes) { limit_memory(bytes); }

size_t symmoe_host_live_bytes() { return live_bytes(); }

int symmoe_host_account(int64_t bytes) {
  return call("account", [&] {
    Runtime::instance().refuse_disturbance("account");
    if (bytes >= 0) {
      take_bytes(static_cast<size_t>(bytes));
    } else {
      give_bytes(static_cast<size_t>(-bytes));
    }
  });
}

void symmoe_host_fail(const char* function, int nth, int status) {
  order_failure(function, nth, status);
}

uint64_t symmoe_host_count(const char* function) { return work_count(function); }
