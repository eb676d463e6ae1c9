// What g++ from 11 on takes from the newest libstdc++ and glibc, for libraries that are built here
// and loaded on older systems: defined once more, out of what the oldest system for which PyTorch's
// wheels are made has (manylinux_2_28, that is libstdc++ of GCC 8 and glibc 2.28). A library that
// is compiled where it is used does without.

#include <exception>
#include <new>
#include <sstream>

#define LARDER_HIDDEN __attribute__((visibility("hidden")))

// Whether the process has one thread, which old glibcs do not tell. It may have more: counters are
// then atomic.
extern "C" {
extern LARDER_HIDDEN char one_thread __asm__("__libc_single_threaded");
char one_thread = 0;
}

namespace {

using Pointer = std::exception_ptr;

// The old library has what counts an exception's owners in these two alone.
extern "C" void copy_construct(Pointer*, const Pointer&) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
extern "C" void destroy(Pointer*) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

}  // namespace

extern "C" {

[[noreturn]] LARDER_HIDDEN void throw_bad_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_length() {
  throw std::bad_array_new_length();
}

// One more owner: a copy that nobody destroys.
LARDER_HIDDEN void add_owner(Pointer*) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_owner(Pointer* pointer) {
  alignas(Pointer) char copy[sizeof(Pointer)];
  copy_construct(reinterpret_cast<Pointer*>(copy), *pointer);
}

// One owner less. The pointer points to nothing afterwards.
LARDER_HIDDEN void release(Pointer*) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(Pointer* pointer) {
  destroy(pointer);
}

// Since glibc 2.34 these are libc's, under a new version; under the old one, which libdl had, every
// system has them.
__asm__(".symver old_dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver old_dlsym,dlsym@GLIBC_2.2.5");
void* old_dlopen(const char* name, int how);
void* old_dlsym(void* library, const char* name);

LARDER_HIDDEN void* dlopen(const char* name, int how) {
  return old_dlopen(name, how);
}

LARDER_HIDDEN void* dlsym(void* library, const char* name) {
  return old_dlsym(library, name);
}

}  // extern "C"

// C++20's is another symbol than that of before.
template std::string std::basic_stringbuf<char>::str() const&;
