/* Preloaded into a program: a thread of Python's stands still at its very start, between CPython's look whether it
 * still may run and its first use of its state. That is where a crowded machine leaves a thread now and then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long words[6];
  for (int i = 0; i < 6; ++i) words[i] = va_arg(list, long);
  va_end(list);
  long (*real)(long, ...);
  *(void**)&real = dlsym(RTLD_NEXT, "syscall");
  if (number == SYS_gettid && gettid() != getpid()) {
    const struct timespec pause = {1, 0};
    nanosleep(&pause, 0);
  }
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
