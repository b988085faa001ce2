// The least a native test needs: named cases, comparisons that print both sides, an exit code.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

inline int g_failure_count = 0;

// Not inlined and no templates: at some hundred places the sanitizers' checks of these took half of a build's time.
[[gnu::noinline]] inline void expect_equal_numbers(long long actual, long long expected, const char* text, int line) {
  if (actual == expected) return;
  ++g_failure_count;
  std::printf("  line %d: %s is %lld, not %lld\n", line, text, actual, expected);
}

[[gnu::noinline]] inline void expect_equal_texts(std::string_view actual, std::string_view expected, const char* text,
                                                 int line) {
  if (actual == expected) return;
  ++g_failure_count;
  std::printf("  line %d: %s is \"%s\", not \"%s\"\n", line, text, std::string(actual).c_str(),
              std::string(expected).c_str());
}

template <typename Actual, typename Expected>
void expect_equal(const Actual& actual, const Expected& expected, const char* text, int line) {
  if constexpr (std::is_arithmetic_v<Actual> || std::is_enum_v<Actual>) {
    expect_equal_numbers(static_cast<long long>(actual), static_cast<long long>(expected), text, line);
  } else {
    expect_equal_texts(actual, expected, text, line);
  }
}

#define EXPECT_EQUAL(actual, expected) expect_equal(actual, expected, #actual, __LINE__)
#define EXPECT(condition) expect_equal(static_cast<bool>(condition), true, #condition, __LINE__)

// Runs one case and names it when it fails.
template <typename Case>
void run_case(const char* name, Case body) {
  const int before = g_failure_count;
  body();
  if (g_failure_count != before) std::printf("%s: failed\n", name);
}

inline int exit_code() {
  return g_failure_count == 0 ? 0 : 1;
}
