// How many requests a second the policy serves, and replay follows, on one core.
//
// A made-up training loop: the same 600 blocks of mixed sizes allocated and freed every step, half of them in reverse
// order, over two streams. Usage: policy_rate [requests] [settings]. Times are process time.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "gpumem_policy.h"
#include "policy.h"
#include "replay.h"
#include "simulated_device.h"

namespace {

constexpr size_t kBlocks = 600;
constexpr size_t kBatchEvents = 262144;

struct Step {
  uint64_t bytes[kBlocks];
  size_t free_order[kBlocks];
};

class RecordingSink : public gpumem::EventSink {
 public:
  void on_event(const gpumem::PolicyEvent& event) override {
    if (event.kind == GM_SEGMENT_REQUEST) return;
    gpumem::RecordedEvent recorded;
    recorded.position = events.size();
    recorded.kind = event.kind;
    recorded.address = event.address;
    recorded.bytes = event.requested_bytes;
    recorded.stream = event.stream;
    recorded.pool_known = true;
    events.push_back(recorded);
  }
  std::vector<gpumem::RecordedEvent> events;
};

double seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Step make_step() {
  Step step;
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < kBlocks; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    step.bytes[i] = (uint64_t{1} << (9 + state % 16)) + state % 4096;
    step.free_order[i] = i % 2 ? i : kBlocks - 2 - i;  // even ones backwards, odd ones forwards
  }
  return step;
}

double serve(const Step& step, const gpumem::Settings& settings, uint64_t requests, gpumem::EventSink* sink) {
  gpumem::SimulatedDevice device(uint64_t{80} << 30);
  gpumem::Policy policy(&device, settings, gpumem::Behaviour(), sink);
  uint64_t addresses[kBlocks];
  double begin = seconds();
  for (uint64_t done = 0; done < requests; done += 2 * kBlocks) {
    for (size_t i = 0; i < kBlocks; ++i) {
      gpumem::Request request;
      request.bytes = step.bytes[i];
      request.stream = i % 8 == 0;
      gpumem::Allocation allocation;
      policy.allocate(request, &allocation);
      addresses[i] = allocation.address;
    }
    for (size_t i : step.free_order) policy.free(addresses[i]);
  }
  return seconds() - begin;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t requests = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 6000000;
  gpumem::Settings settings;
  std::string error;
  if (!gpumem::parse_settings(argc > 2 ? argv[2] : "", &settings, &error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  Step step = make_step();
  double served = serve(step, settings, requests, nullptr);
  std::printf("policy: %.2f M requests/s (allocs and frees)\n", static_cast<double>(requests) / served / 1e6);

  RecordingSink sink;
  sink.events.reserve(requests + requests / 8);
  serve(step, settings, requests, &sink);
  gpumem::ReplayOptions options;
  options.settings = settings;
  options.limit_known = true;
  gpumem::TraceFollower follower(options, nullptr);
  double begin = seconds();
  for (size_t i = 0; i < sink.events.size(); ++i) {
    follower.append(sink.events[i]);
    if ((i + 1) % kBatchEvents == 0) follower.follow(false);
  }
  follower.follow(true);
  double followed = seconds() - begin;
  std::printf("replay: %.2f M requests/s, %s\n", static_cast<double>(requests) / followed / 1e6,
              follower.result().difference.found ? "NOT EXACT" : "exact");
  return follower.result().difference.found ? 1 : 0;
}
