// What a CPython exports that was built to check its references: loaded while a test pretends to be one.
extern "C" __attribute__((visibility("default"))) const char* _Py_stackref_get_object(const char* reference) {
  return reference;
}
