/* The first version of the C library's symbols, which every glibc has. */
#pragma once

#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#define FIRST_DLMOPEN "GLIBC_2.3.4"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#define FIRST_DLMOPEN "GLIBC_2.17"
#else
#error "no version for this machine"
#endif
