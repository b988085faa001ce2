// The clock of ticks against pretended counters and system clocks: how far off it may be, and after what.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "expect.h"
#include "tick_clock.h"

namespace {

using gpumem::TickClock;

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
constexpr uint64_t kLongestSpanTicks = 1 << 26;

// A counter and a system's clock; what is asked for in between costs no time.
struct Machine {
  uint64_t hertz;
  double pace = 1;               // of the system's clock against the counter
  double ticks = 3e15;           // months after its start
  double now_ns = 8e15;          // of the system
  int64_t reading_error_ns = 0;  // of a comparison, one way and the other in turn
  uint64_t comparison_count = 0;
  double distance_ns_most = 0;  // of the clock from the system's time, either way
  TickClock clock = {};

  uint64_t counter() const { return static_cast<uint64_t>(ticks); }
  void pass(uint64_t ns) {
    ticks += static_cast<double>(ns) * static_cast<double>(hertz) / 1e9;
    now_ns += static_cast<double>(ns) * pace;
  }
  void ask() {
    if (clock.is_known(counter())) {
      const double distance = static_cast<double>(clock.time_ns(counter())) - now_ns;
      distance_ns_most = std::max(distance_ns_most, distance < 0 ? -distance : distance);
      return;
    }
    const int64_t error = comparison_count++ % 2 == 0 ? reading_error_ns : -reading_error_ns;
    clock.compare(counter(), static_cast<uint64_t>(static_cast<int64_t>(now_ns) + error));
  }
  // Asks every few microseconds; how far off the clock was at most.
  double run(uint64_t ns) {
    distance_ns_most = 0;
    for (uint64_t passed = 0; passed < ns; passed += 7 * kMicrosecond) {
      ask();
      pass(7 * kMicrosecond);
    }
    return distance_ns_most;
  }
};

void test_steady_clocks_agree_within_a_microsecond_and_are_seldom_compared() {
  for (const uint64_t hertz : {1'000'000'000u, 1'995'312'000u, 2'899'999'999u, 3'700'000'000u, 4'200'000'000u}) {
    for (const int64_t error : {0, 20}) {
      Machine machine = {hertz};
      machine.reading_error_ns = error;
      EXPECT(machine.run(kSecond) < kMicrosecond);
      machine.comparison_count = 0;
      EXPECT(machine.run(2 * kSecond) < kMicrosecond);
      // Nearly all spans have the greatest length by then.
      EXPECT(machine.comparison_count <= 2 * hertz / kLongestSpanTicks + 4);
      EXPECT(machine.comparison_count + 4 >= 2 * hertz / kLongestSpanTicks);
    }
  }
  Machine fastest = {6'000'000'000};
  EXPECT(fastest.run(3 * kSecond) < kMicrosecond);
}

void test_idle_thread_keeps_its_rate() {
  Machine machine = {2'900'000'000};
  machine.reading_error_ns = 20;
  machine.run(kSecond);
  machine.comparison_count = 0;
  for (uint32_t round = 0; round < 10; ++round) {
    machine.pass(kSecond);
    EXPECT(machine.run(100 * kMillisecond) < kMicrosecond);
  }
  EXPECT(machine.comparison_count <= 10 * 6);
}

void test_counter_too_slow_is_not_gone_by() {
  for (const uint64_t hertz : {1'000'000u, 15'625'000u, 200'000'000u}) {
    Machine machine = {hertz};
    machine.run(20 * kSecond);
    EXPECT_EQUAL(machine.distance_ns_most, 0);
    EXPECT(!machine.clock.is_known(machine.counter()));
  }
}

void test_slewed_system_clock_is_followed_from_the_next_check_on() {
  for (const double change : {-500e-6, 500e-6, 100e-6, 1e-6}) {
    Machine machine = {2'100'000'000};
    machine.run(kSecond);
    machine.pace = 1 + change;
    const double longest_span_ns = kLongestSpanTicks / 2.1;
    EXPECT(machine.run(40 * kMillisecond) < std::abs(change) * longest_span_ns + kMicrosecond);
    EXPECT(machine.run(kSecond) < kMicrosecond);
  }
}

void test_paces_that_never_settle_cost_accuracy_and_nothing_else() {
  Machine machine = {3'000'000'000};
  for (uint32_t round = 0; round < 400; ++round) {
    machine.pace = round % 2 == 0 ? 1 + 50e-6 : 1 - 50e-6;
    EXPECT(machine.run((1 + round % 60) * kMillisecond) < 100e-6 * kLongestSpanTicks / 3 + kMicrosecond);
  }
}

// A machine that was stopped and goes on: the system's clock may have gone on alone, or the counter.
void test_time_that_one_clock_alone_saw_makes_no_rate() {
  for (const uint64_t hertz : {1'000'000'000u, 3'000'000'000u}) {
    for (const uint64_t busy : {7 * kMicrosecond, 2 * kMillisecond, 50 * kMillisecond, kSecond}) {
      for (const uint64_t idle : {uint64_t{0}, 700 * kMillisecond}) {
        for (const uint64_t missed : {200 * kMicrosecond, 80 * kMillisecond, kSecond, 4 * kSecond, 5000 * kSecond}) {
          Machine counter_stood = {hertz};
          counter_stood.run(busy);
          counter_stood.pass(idle);
          counter_stood.now_ns += static_cast<double>(missed);
          counter_stood.run(70 * kMillisecond);  // what is left of a span
          EXPECT(counter_stood.run(kSecond) < kMicrosecond);
          Machine system_stood = {hertz};
          system_stood.run(busy);
          system_stood.pass(idle);
          system_stood.ticks += static_cast<double>(missed) * static_cast<double>(hertz) / 1e9;
          system_stood.run(70 * kMillisecond);
          EXPECT(system_stood.run(kSecond) < kMicrosecond);
        }
      }
    }
  }
}

// The clock that runs ahead is the harm: a device's events keep the latest time that any of them had.
void test_clock_is_never_ahead_of_a_system_that_the_counter_lags_behind() {
  for (const uint64_t busy : {7 * kMicrosecond, 2 * kMillisecond, 100 * kMillisecond}) {
    for (const uint64_t missed : {kMillisecond, 300 * kMillisecond, 4 * kSecond}) {
      Machine machine = {2'500'000'000};
      machine.run(busy);
      machine.pass(busy * 100);
      machine.now_ns += static_cast<double>(missed);
      for (uint64_t passed = 0; passed < 200 * kMillisecond; passed += 7 * kMicrosecond) {
        machine.ask();
        const uint64_t counter = machine.counter();
        if (machine.clock.is_known(counter)) {
          EXPECT(static_cast<double>(machine.clock.time_ns(counter)) < machine.now_ns + kMicrosecond);
        }
        machine.pass(7 * kMicrosecond);
      }
    }
  }
}

void test_counter_that_steps_back_is_noticed() {
  for (const double step : {10e6, 1e9, 2e15}) {
    Machine machine = {3'000'000'000};
    machine.run(kSecond);
    machine.ask();
    machine.pass(kMicrosecond);
    machine.ticks -= step;
    machine.run(30 * kMillisecond);
    EXPECT(machine.run(kSecond) < kMicrosecond);
  }
}

}  // namespace

int main(int, char**) {
  run_case("steady clocks", test_steady_clocks_agree_within_a_microsecond_and_are_seldom_compared);
  run_case("idle thread", test_idle_thread_keeps_its_rate);
  run_case("slow counter", test_counter_too_slow_is_not_gone_by);
  run_case("slewed", test_slewed_system_clock_is_followed_from_the_next_check_on);
  run_case("unsettled", test_paces_that_never_settle_cost_accuracy_and_nothing_else);
  run_case("missed time", test_time_that_one_clock_alone_saw_makes_no_rate);
  run_case("never ahead", test_clock_is_never_ahead_of_a_system_that_the_counter_lags_behind);
  run_case("step back", test_counter_that_steps_back_is_noticed);
  return exit_code();
}
