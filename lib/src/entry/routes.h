/* Hands out our functions for the driver's, by address. Knows no policy. */
#ifndef VGPU_ROUTES_H
#define VGPU_ROUTES_H

#include <stdbool.h>

/* Is a function of this very name caught? Then its library's real functions are loaded now, so that dlerror speaks of
 * the caller's lookup afterwards, not of ours. */
bool routes_catch(const char *name);

/* What a lookup hands out: our function where `address` is a real one that is caught, else `address`. */
void *routes_to(const char *name, void *address);

/* Our function for the real one of this name; NULL where there is none. */
void *routes_of(const char *name);

#endif
