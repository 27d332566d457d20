/*
 * The C library's dlopen, dlsym and dlvsym, found in its own symbol table: we export dlsym and dlvsym ourselves, and a
 * reference to dlopen would tie us to the glibc that we were built with (it moved from libdl to libc in 2.34).
 */
#ifndef VGPU_LIBC_SYMBOLS_H
#define VGPU_LIBC_SYMBOLS_H

void *libc_dlopen(const char *name, int flags);
void *libc_dlsym(void *handle, const char *name);

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

/* Never NULL: without a C library that has them, they find nothing. */
dlsym_function *libc_find_dlsym(void);
dlvsym_function *libc_find_dlvsym(void);

#endif
