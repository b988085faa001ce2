// Reads NVML beside the program, by its functions' addresses, and records what is as it was judged.
//
// Owns: the calls to the driver, when a reading is due, whether figures are of the judged kind. Must not know: what
// NVML's figures and codes mean, Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpumem_nvml.h"

namespace gpumem {

class NvmlSampling {
 public:
  explicit NvmlSampling(const gm_nvml_functions& functions);

  void read(uint64_t handle, gm_nvml_figures* figures);
  uint64_t forget() { return generation_.fetch_add(1, std::memory_order_seq_cst) + 1; }
  void follow(uint64_t generation, const gm_nvml_device* devices, uint32_t count);
  gm_nvml_outcome sample(uint64_t age_ns_least);
  gm_nvml_outcome run(uint32_t interval_ms, uint64_t gap_ns);
  void stop();
  void give_up();
  uint64_t call_since_ns() const { return call_since_ns_.load(std::memory_order_relaxed); }

 private:
  struct Followed {
    gm_nvml_device judged;
    std::vector<gm_nvml_share> shares;
  };

  // mutex_ is held in these.
  void take_figures(uint64_t handle, std::vector<gm_nvml_process>* processes, gm_nvml_figures* figures);
  int32_t take_memory(void* device, gm_nvml_figures* figures);
  int32_t take_list(void* device, uint32_t list, std::vector<gm_nvml_process>* processes);
  template <typename Call>
  int32_t call_driver(Call call);
  bool measure_devices();

  bool record_readings();

  const gm_nvml_functions functions_;
  std::mutex mutex_;                           // one reading at a time; held through calls to the driver
  std::vector<uint8_t> listed_;                // room for a list as NVML writes it
  std::vector<gm_nvml_process> processes_;     // of the device being sampled
  std::vector<gm_nvml_process> to_be_judged_;  // of the device read last
  std::vector<Followed> followed_;
  std::vector<gm_reading> readings_;
  uint64_t followed_generation_ = 0;
  uint64_t seen_;                             // segment events at the last wait; run()'s own
  std::atomic<uint64_t> generation_{1};       // followed_ holds only while followed_generation_ is this
  std::atomic<uint64_t> last_reading_ns_{0};  // CLOCK_MONOTONIC
  std::atomic<uint64_t> call_since_ns_{0};    // CLOCK_MONOTONIC; 0: no call to the driver is under way
  std::atomic<bool> is_stopping_{false};
  std::mutex record_mutex_;  // guards is_given_up_; never held in a call to the driver
  bool is_given_up_ = false;
};

}  // namespace gpumem
