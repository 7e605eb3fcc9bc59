// Work split into stages of independent items, done by any number of threads that call Work().
#ifndef TRANSCONV_CPU_RUNNER_H_
#define TRANSCONV_CPU_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

namespace transconv::cpu {

// A stage starts when every item of the one before is done. Nobody sleeps: a thread that finds no
// item left waits only for items that some running thread has already claimed, so the job finishes
// whatever the number of threads that show up, the caller's alone included. A thread that shows up
// late finds nothing to do and touches no buffer.
class Job {
 public:
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // How many threads are worth having, the caller included.
  int64_t workers() const { return workers_; }
  bool out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }
  // `done` runs once, on the thread that finishes the last item.
  void OnDone(std::function<void()> done) { done_ = std::move(done); }

  void Work() {
    for (int s = 0; s < num_stages_; ++s) {
      Stage& stage = stages_[s];
      for (;;) {
        const int64_t item = stage.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= stage.items) break;
        if (!out_of_memory() && !RunItem(stage.id, item)) {
          out_of_memory_.store(true, std::memory_order_relaxed);
        }
        const int64_t finished = stage.done.fetch_add(1, std::memory_order_acq_rel) + 1;
        if (finished == stage.items && s + 1 == num_stages_ && done_) done_();
      }
      if (s + 1 == num_stages_) break;
      for (int spins = 0; stage.done.load(std::memory_order_acquire) < stage.items; ++spins) {
        if (spins > 256) std::this_thread::yield();
      }
    }
  }

 protected:
  Job() = default;

  // Stages without items are left out; `id` is what RunItem gets.
  void AddStage(int id, int64_t items) {
    if (items <= 0) return;
    stages_[num_stages_].id = id;
    stages_[num_stages_].items = items;
    ++num_stages_;
  }
  void SetWorkers(int64_t threads) {
    int64_t widest = 1;
    for (int s = 0; s < num_stages_; ++s) {
      widest = stages_[s].items > widest ? stages_[s].items : widest;
    }
    workers_ = threads < widest ? threads : widest;
  }
  // False: no memory for scratch.
  virtual bool RunItem(int stage, int64_t item) = 0;

 private:
  struct alignas(64) Stage {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    int64_t items = 0;
    int id = 0;
  };
  Stage stages_[4];
  int num_stages_ = 0;
  int64_t workers_ = 1;
  std::atomic<bool> out_of_memory_{false};
  std::function<void()> done_;
};

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_RUNNER_H_
