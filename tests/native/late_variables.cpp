// A library that a test loads when it already runs: its thread-local variables lie wherever there is room, more of them
// than the loader keeps free among those of the program.
namespace {

thread_local const void* t_many[4096] = {};

}  // namespace

extern "C" __attribute__((visibility("default"))) const void** late_variable() {
  return t_many;
}
