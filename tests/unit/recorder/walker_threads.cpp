// Threads as a C library makes them: with Python for a callback alone, or with a second thread state.
//
// Owns: nothing; built by test_walker.py, without Python's headers.
#include <pthread.h>

#include <cstdint>

extern "C" {

using object = void*;
object PyThreadState_New(object interpreter);
object PyThreadState_Swap(object state);
object PyThreadState_Get(void);
object PyThreadState_GetInterpreter(object state);
object PyObject_CallNoArgs(object callable);
void PyThreadState_Clear(object state);
void PyThreadState_Delete(object state);
void PyErr_Print(void);
void Py_DecRef(object any);

struct Calls {
  void (*callback)(void);
  uint32_t (*intern)(void);
  int count;
  int stacks_outside;  // met between the callbacks, where there is no Python
};

static void* call_in_thread(void* argument) {
  auto* calls = static_cast<Calls*>(argument);
  for (int i = 0; i < calls->count; ++i) {
    calls->stacks_outside += calls->intern() != 0;
    calls->callback();
    calls->stacks_outside += calls->intern() != 0;
  }
  return nullptr;
}

// Calls back from a thread of its own, whose Python state comes and goes with each call.
int call_from_thread(void (*callback)(void), uint32_t (*intern)(void), int count) {
  Calls calls = {callback, intern, count, 0};
  pthread_t thread;
  if (pthread_create(&thread, nullptr, call_in_thread, &calls) != 0) return -1;
  pthread_join(thread, nullptr);
  return calls.stacks_outside;
}

// Calls under another state of this thread and the same interpreter; with the interpreter lock. How many stacks asked
// for in between were wrong: this thread's own again and again, and none of a state that runs nothing.
int call_under_new_state(object callable, uint32_t (*intern)(void), int count) {
  object own = PyThreadState_Get();
  const uint32_t own_stack = intern();
  int wrong = own_stack == 0;
  for (int i = 0; i < count; ++i) wrong += intern() != own_stack;
  object other = PyThreadState_New(PyThreadState_GetInterpreter(own));
  PyThreadState_Swap(other);
  for (int i = 0; i < count; ++i) {
    wrong += intern() != 0;
    object result = PyObject_CallNoArgs(callable);
    if (result) {
      Py_DecRef(result);
    } else {
      PyErr_Print();
    }
  }
  PyThreadState_Clear(other);
  PyThreadState_Swap(own);
  PyThreadState_Delete(other);
  for (int i = 0; i < count; ++i) wrong += intern() != own_stack;
  return wrong;
}
}  // extern "C"
