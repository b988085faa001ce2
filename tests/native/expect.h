// The least a native test needs: named cases, comparisons that print both sides, an exit code.
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>

inline int g_failure_count = 0;

template <typename Value>
std::string shown(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return std::to_string(value);
  } else {
    return "\"" + std::string(value) + "\"";
  }
}

template <typename Actual, typename Expected>
void expect_equal(const Actual& actual, const Expected& expected, const char* text, int line) {
  bool is_equal;
  if constexpr (std::is_arithmetic_v<Actual> || std::is_enum_v<Actual>) {
    is_equal = static_cast<long long>(actual) == static_cast<long long>(expected);
  } else {
    is_equal = std::string(actual) == std::string(expected);
  }
  if (is_equal) return;
  ++g_failure_count;
  std::printf("  line %d: %s is %s, not %s\n", line, text, shown(actual).c_str(), shown(expected).c_str());
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
