/*
 * The program's beginning, in place of the compiler's, which would ask for the glibc of the machine that builds it:
 * containers have older ones.
 */
#include "start.h"

#include <stddef.h>

#if defined(__x86_64__)
__asm__(".globl own_start\n"
        "own_start:\n"
        "  xor %ebp, %ebp\n"
        "  mov %rsp, %rdi\n"
        "  and $-16, %rsp\n"
        "  call begin\n");
#elif defined(__aarch64__)
__asm__(".globl own_start\n"
        "own_start:\n"
        "  mov x29, #0\n"
        "  mov x30, #0\n"
        "  mov x0, sp\n"
        "  b begin\n");
#else
#error "no start for this machine"
#endif

__asm__(".symver first_libc_start_main, __libc_start_main@" FIRST_GLIBC);

int main(int count, char *arguments[]);
int first_libc_start_main(int (*)(int, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

/* The stack begins with the number of arguments, and then the arguments. */
__attribute__((used, noreturn)) void begin(long *stack) {
  first_libc_start_main(main, (int)stack[0], (char **)(stack + 1), NULL, NULL, NULL, stack);
  __builtin_unreachable();
}
