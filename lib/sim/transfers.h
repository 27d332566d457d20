/* Data that moves: which bytes may be touched, how long it takes, and waiting for it. */
#pragma once

#include "streams.h"

/* Whether all of a range lies in one allocation, mapping or registered host range. */
bool transfer_is_ours(uintptr_t address, size_t size);

/* Whether the bytes at an address are kept, so that they can be read and written here. The program's own memory is. */
bool transfer_keeps_data(uintptr_t address);

/* How long so many bytes take at a rate. */
uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_ms);

/* Puts a transfer into a stream; end_ns says when it ends. In a capturing stream it becomes a node of this type, and
 * end_ns is 0. */
CUresult transfer_queue(struct stream *stream, CUgraphNodeType type, uint64_t duration_ns, uint64_t *end_ns);
