#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace symmoe::host {

// A moment in the work of a stream, for others to wait for. It comes once.
class Point {
 public:
  void reach();
  bool reached() const;
  void wait();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

// Something to be done later, perhaps several times (in a graph). Goes away with its last owner.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual void run() = 0;
};

template <typename Body>
std::shared_ptr<Work> make_work(Body body) {
  class Closure : public Work {
   public:
    explicit Closure(Body given) : body_(std::move(given)) {}
    void run() override { body_(); }

   private:
    Body body_;
  };
  return std::make_shared<Closure>(std::move(body));
}

// What a worker does in one go: it waits, then works, then has reached a point. Each part may be
// missing.
struct Step {
  std::shared_ptr<Point> wait_for;
  std::shared_ptr<Work> work;
  std::shared_ptr<Point> reach;
};

// A thread that takes steps in the order in which they were given. It starts with the first one and
// sleeps while it has none.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void push(Step step);
  // Reached when all steps given so far are done; null if there were none.
  std::shared_ptr<Point> tail() const;
  // The thread ends when all steps are taken, by itself: close does not wait for that.
  void close();

  // For the end of the process: no worker begins another step. Waits for the work that is being
  // done, but not for long, since it may itself wait for another process.
  static void stop_all();

 private:
  void loop();
  void end_thread();
  [[noreturn]] void stay();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> steps_;
  std::shared_ptr<Point> tail_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace symmoe::host
