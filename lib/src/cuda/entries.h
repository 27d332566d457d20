/*
 * The CUDA entry points: one row for each recorded function, with the types of its arguments (named a, b, c and so on
 * in their order) and then what is recorded of the call. The compiler compares each row with the prototype in cuda.h.
 *
 * In a process without limits and a profile, an entry is a branch and a jump to the driver. Else it waits while the
 * process is suspended, and goes on to the BODY of a caught function (in a file of cuda/) or, where a function is only
 * recorded, to the DRIVER.
 */
#pragma once

#include "device/suspension.h"
#include "profile/file.h"
#include "stream/profile.h"
#include "stream/streams.h"

#define BODY(name) name
#define DRIVER(name) real.name
#define BODY_IS_NOT_ASKED process_is_free()
#define DRIVER_IS_NOT_ASKED (profile_is_off() && !process_is_suspended())

/* The way that looks at the call is a function of its own, so that no register is saved without it. */
#define ENTRY(inner, name, parameters, arguments, ...)                                                                 \
  static __attribute__((noinline)) CUresult recorded_##name parameters {                                               \
    const struct profile_facts facts = {__VA_ARGS__};                                                                  \
    profile_before_call(&facts);                                                                                       \
    int64_t start_ns = quick_clock_ns();                                                                               \
    CUresult result = inner(name) arguments;                                                                           \
    profile_call(API_##name, start_ns, result, &facts);                                                                \
    return result;                                                                                                     \
  }                                                                                                                    \
  static __attribute__((noinline)) CUresult looked_at_##name parameters {                                              \
    return KEEPING_ERRNO((suspension_pass(), profile_is_on() ? recorded_##name arguments : inner(name) arguments));    \
  }                                                                                                                    \
  HOOK CUresult entry_##name parameters {                                                                              \
    if (__builtin_expect(inner##_IS_NOT_ASKED, 1))                                                                     \
      return real.name arguments;                                                                                      \
    return looked_at_##name arguments;                                                                                 \
  }

#define ENTRY_0(inner, name, ...) ENTRY(inner, name, (void), (), __VA_ARGS__)
#define ENTRY_1(inner, name, A, ...) ENTRY(inner, name, (A a), (a), __VA_ARGS__)
#define ENTRY_2(inner, name, A, B, ...) ENTRY(inner, name, (A a, B b), (a, b), __VA_ARGS__)
#define ENTRY_3(inner, name, A, B, C, ...) ENTRY(inner, name, (A a, B b, C c), (a, b, c), __VA_ARGS__)
#define ENTRY_4(inner, name, A, B, C, D, ...) ENTRY(inner, name, (A a, B b, C c, D d), (a, b, c, d), __VA_ARGS__)
#define ENTRY_5(inner, name, A, B, C, D, E, ...)                                                                       \
  ENTRY(inner, name, (A a, B b, C c, D d, E e), (a, b, c, d, e), __VA_ARGS__)
#define ENTRY_6(inner, name, A, B, C, D, E, F, ...)                                                                    \
  ENTRY(inner, name, (A a, B b, C c, D d, E e, F f), (a, b, c, d, e, f), __VA_ARGS__)
#define ENTRY_7(inner, name, A, B, C, D, E, F, G, ...)                                                                 \
  ENTRY(inner, name, (A a, B b, C c, D d, E e, F f, G g), (a, b, c, d, e, f, g), __VA_ARGS__)
#define ENTRY_8(inner, name, A, B, C, D, E, F, G, H, ...)                                                              \
  ENTRY(inner, name, (A a, B b, C c, D d, E e, F f, G g, H h), (a, b, c, d, e, f, g, h), __VA_ARGS__)
#define ENTRY_10(inner, name, A, B, C, D, E, F, G, H, I, J, ...)                                                       \
  ENTRY(inner, name, (A a, B b, C c, D d, E e, F f, G g, H h, I i, J j), (a, b, c, d, e, f, g, h, i, j), __VA_ARGS__)
#define ENTRY_11(inner, name, A, B, C, D, E, F, G, H, I, J, K, ...)                                                    \
  ENTRY(inner, name, (A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k), (a, b, c, d, e, f, g, h, i, j, k),       \
        __VA_ARGS__)

#define BYTES(count) .bytes = (count)
#define COPY(direction, count) .copy = PROFILE_##direction, .bytes = (count)
#define STREAM(handle) .stream = legacy(handle), .uses_stream = true
#define STREAM_PER_THREAD(handle) .stream = per_thread(handle), .uses_stream = true
#define LAUNCHES_ON(handle) .stream = (handle)
#define ENDS_STREAM(handle) .stream = (handle), .ends_stream = true
#define WAITS .waits = true
#define CAPTURES .captures = true
#define CHANGES_CONTEXT .changes_context = true
#define ENDS_KERNELS .ends_kernels = true
