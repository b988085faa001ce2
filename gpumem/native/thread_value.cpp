#include "thread_value.h"

#include <link.h>

#include <thread>

#include "journal_file.h"

namespace gpumem {

#if defined(__x86_64__) && defined(__GLIBC__)

namespace {

// A descriptor is longer than that in every glibc; the slots begin at its 784th byte in those of today.
constexpr int16_t kDescriptorBytes = 2048;
constexpr int16_t kSlotBytes = 16;  // a sequence number, then the value
constexpr int16_t kValueInSlot = 8;

template <typename Word>
Word read_word(int64_t distance) {
  Word word;
  std::memcpy(&word, thread_pointer() + distance, sizeof word);
  return word;
}

// Whether a key of our own shows its values at `distance`, so far away as the keys are apart.
bool is_place_of_values(int64_t distance, pthread_key_t key) {
  pthread_key_t own;
  if (::pthread_key_create(&own, nullptr) != 0) return false;
  const int64_t own_distance = distance + (static_cast<int64_t>(own) - static_cast<int64_t>(key)) * kSlotBytes;
  bool is_place = own_distance >= 0 && own_distance < kDescriptorBytes;
  for (uintptr_t word = 1; word != 4 && is_place; ++word) {
    const auto value = reinterpret_cast<const void*>(word << 48 | 0x5d3b);
    is_place = ::pthread_setspecific(own, value) == 0;
    asm volatile("" ::: "memory");
    is_place = is_place && read_word<const void*>(own_distance) == value;
  }
  ::pthread_key_delete(own);
  return is_place;
}

struct LocalsQuestion {
  uintptr_t code;
  ThreadLocals found;
};

// Called for one loaded object after another until it answers 1.
int answer_if_holding(dl_phdr_info* object, size_t, void* asked) {
  auto* question = static_cast<LocalsQuestion*>(asked);
  const ElfW(Phdr)* locals = nullptr;
  bool is_holding = false;
  for (const ElfW(Phdr)* part = object->dlpi_phdr; part != object->dlpi_phdr + object->dlpi_phnum; ++part) {
    if (part->p_type == PT_TLS) locals = part;
    is_holding =
        is_holding || (part->p_type == PT_LOAD && question->code - (object->dlpi_addr + part->p_vaddr) < part->p_memsz);
  }
  if (!is_holding) return 0;
  if (locals != nullptr && object->dlpi_tls_data != nullptr) {
    question->found = {static_cast<char*>(object->dlpi_tls_data), locals->p_memsz};
  }
  return 1;
}

// From the calling thread's thread pointer; 0: it has none.
int64_t distance_of_locals(const void* code) {
  const char* start = find_thread_locals(code).start;
  return start == nullptr ? 0 : start - thread_pointer();
}

}  // namespace

ThreadLocals find_thread_locals(const void* code) {
  LocalsQuestion question = {reinterpret_cast<uintptr_t>(code), {nullptr, 0}};
  ::dl_iterate_phdr(answer_if_holding, &question);
  return question.found;
}

bool ThreadValue::find_variable(const void* code, size_t offset) {
  const int64_t locals = distance_of_locals(code);
  const int64_t distance = locals + static_cast<int64_t>(offset) - kValueInSlot;
  // What was loaded later has its variables wherever there was room, for each thread and often not before it asks.
  int64_t elsewhere = 0;
  std::thread other;
  if (!start_quiet_thread(&other, "gpumem", [&] { elsewhere = distance_of_locals(code); })) return false;
  other.join();
  distance_ = static_cast<int16_t>(distance);
  sequence_ = kVariable;
  return locals != 0 && locals == elsewhere && distance == distance_;
}

bool ThreadValue::find(pthread_key_t key) {
  const void* value = ::pthread_getspecific(key);
  if (value == nullptr) return false;
  for (distance_ = 0; distance_ < kDescriptorBytes; distance_ += kValueInSlot) {
    const int64_t place = distance_ + kValueInSlot;
    if (read_word<const void*>(place) != value || !is_place_of_values(place, key)) continue;
    const auto sequence = read_word<uint64_t>(distance_);
    sequence_ = static_cast<uint16_t>(sequence);
    return sequence != 0 && sequence == sequence_;
  }
  return false;
}

#endif

}  // namespace gpumem
